//! Permissions and questions where no person can be asked.

use std::fs;

use serde_json::json;

use super::{fleeting, ran, run_of, summed_up};

const ASKS: &str = "/ask rm {\"path\":\"src/x\"}\n/say after";

#[test]
fn permission_is_denied_by_default_and_the_turn_goes_on() {
    let (done, summary) = summed_up(&mut fleeting(ASKS));
    assert_eq!((done.status, done.out.as_str()), (11, "after\n"));
    assert!(done.err.contains("denied: rm: Run rm (no rule allows it)"), "{}", done.err);
    assert_eq!(summary["result"], "denied");
    let decided = &summary["permissions"][0];
    assert_eq!(
        (&decided["tool"], &decided["allowed"], &decided["by"]),
        (&json!("rm"), &json!(false), &json!("default"))
    );
    assert_eq!(decided["paths"], json!(["/src/x"]));
}

#[test]
fn rule_that_covers_a_call_grants_it() {
    let (done, summary) = summed_up(fleeting(ASKS).args(["--allow", "tool=ls; tool=rm path=src/*"]));
    assert_eq!(done.status, 0, "{done:?}");
    let decided = &summary["permissions"][0];
    assert_eq!((&decided["allowed"], &decided["by"]), (&json!(true), &json!("rule")));
    assert_eq!(decided["rule"], "tool=rm path=src/*");
}

#[test]
fn denial_precedes_every_grant() {
    for allow in [&["--allow-all"][..], &["--allow", "tool=rm"]] {
        let (done, summary) = summed_up(fleeting(ASKS).args(allow).args(["--deny", "path=src/**"]));
        assert_eq!(done.status, 11);
        assert_eq!(summary["permissions"][0]["rule"], "path=src/**");
    }
    assert_eq!(ran(fleeting(ASKS).arg("--allow-all")).status, 0);
}

#[test]
fn rules_of_the_configuration_file_apply() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let with = |text: &str| {
        fs::write(&config, text).unwrap();
        ran(run_of(["--ephemeral", ASKS, "--config"]).arg(&config))
    };
    assert_eq!(with("[run]\nallow = ['tool=rm']").status, 0);
    assert_eq!(with("[run]\nallow = ['tool=rm']\ndeny = ['path=src/**']").status, 11);
    let wrong = with("[run]\nallow = ['edit']");
    assert_eq!(wrong.status, 2);
    assert!(wrong.err.contains("`run.allow` of the configuration: `edit`"), "{}", wrong.err);
    assert_eq!(with("[run]\nallows = []").status, 2);
}

#[test]
fn result_of_a_call_is_confirmed_by_the_rules() {
    assert_eq!(ran(fleeting("/review cat").args(["--allow", "tool=cat"])).status, 0);
    let (done, summary) = summed_up(&mut fleeting("/review cat\n/say after"));
    assert_eq!((done.status, done.out.as_str()), (11, "after\n"));
    assert_eq!(summary["permissions"][0]["allowed"], false);
}

const QUESTION: &str =
    "/question [{\"kind\":\"text\",\"id\":\"name\",\"message\":\"Who?\",\"required\":true}]";

#[test]
fn question_is_declined_without_an_answer() {
    let (done, summary) = summed_up(&mut fleeting(QUESTION));
    assert_eq!(done.status, 11);
    assert!(done.err.contains("declined: Who? (no answer is given)"), "{}", done.err);
    let question = &summary["questions"][0];
    assert_eq!((&question["texts"], &question["answered"]), (&json!(["Who?"]), &json!(false)));
}

#[test]
fn question_is_answered_from_the_file_by_id_or_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.json");
    for answers in ["{ \"name\": \"Ada\" }", "{ \"Who?\": \"Ada\" }"] {
        fs::write(&file, answers).unwrap();
        let done = ran(fleeting(QUESTION).arg("--answers").arg(&file));
        assert_eq!((done.status, done.out.as_str()), (0, "name: Ada\n"), "{done:?}");
    }
}

#[test]
fn rule_with_an_unknown_kind_is_wrong_usage() {
    let done = ran(fleeting(ASKS).args(["--allow-all", "--deny", "kind=edti"]));
    assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
    assert!(
        done.err.contains("--deny: `kind=edti`: `edti` is no kind of tool; there are: read,"),
        "{}",
        done.err
    );
}

#[test]
fn answer_that_the_host_refuses_declines_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.json");
    fs::write(&file, "{ \"age\": 1.5 }").unwrap();
    let question = "/question [{\"kind\":\"integer\",\"id\":\"age\",\"message\":\"Age?\",\"max\":1}]";
    // Without an end, the time limit cancels the turn.
    let arguments = ["--timeout", "60", "--answers"];
    let (done, summary) = summed_up(fleeting(question).args(arguments).arg(&file));
    assert_eq!(done.status, 11, "{done:?}");
    assert_eq!(summary["questions"].as_array().unwrap().len(), 1, "{summary}");
    assert_eq!(summary["questions"][0]["answered"], false);
}
