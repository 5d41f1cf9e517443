//! Result of a run, as a table, as JSON, and as JUnit's XML.
//!
//! Owns: their forms.
//! Never: judges.

use std::fmt::Write;

use serde_json::{json, Value};

use crate::transcripts::differences::escaped;

/// Outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The law holds.
    Held,
    /// The law is broken, for this reason.
    Broken(String),
    /// The host does not have what the law is about, for this reason.
    NotOffered(String),
}

/// Result of a check.
#[derive(Debug)]
pub struct CheckResult {
    /// Name of the check.
    pub name: &'static str,
    /// Chapter of the specification.
    pub chapter: &'static str,
    /// Law, as a sentence.
    pub law: &'static str,
    /// Outcome of the check.
    pub outcome: CheckOutcome,
    /// Transcripts that show a broken law, one per connection.
    pub transcripts: Vec<String>,
}

/// Results of a run.
#[derive(Debug)]
pub struct ConformReport {
    /// Name and version of the host, as it says them.
    pub host: Value,
    /// Version of the protocol that was spoken.
    pub version: Value,
    /// Seed of the run.
    pub seed: u64,
    /// Results of the checks, in their order.
    pub results: Vec<CheckResult>,
}

impl CheckOutcome {
    /// Returns the word and the reason.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Held => ("held", ""),
            Self::Broken(why) => ("broken", why),
            Self::NotOffered(why) => ("not offered", why),
        }
    }
}

impl ConformReport {
    /// Returns whether no law is broken.
    pub fn is_held(&self) -> bool {
        self.count("broken") == 0
    }

    fn count(&self, word: &str) -> usize {
        self.results.iter().filter(|result| result.outcome.parts().0 == word).count()
    }

    /// Returns the table, by chapters.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut chapter = "";
        for result in &self.results {
            let (word, why) = result.outcome.parts();
            if result.chapter != chapter {
                chapter = result.chapter;
                table += &format!("{chapter}\n");
            }
            table += &format!("  {:<28} {word}", result.name);
            if word == "held" {
                table.push('\n');
                continue;
            }
            let mut lines = why.lines().map(printable);
            table += &format!(": {}\n", lines.next().unwrap_or_default());
            lines.for_each(|line| table += &format!("      {line}\n"));
        }
        let counts = ["held", "broken", "not offered"].map(|word| format!("{} {word}", self.count(word)));
        table + &format!("{}; seed {}\n", counts.join(", "), self.seed)
    }

    /// Returns the results as JSON.
    pub fn json(&self) -> Value {
        let results = self.results.iter().map(|result| {
            let (outcome, why) = result.outcome.parts();
            let mut value = json!({
                "name": result.name, "chapter": result.chapter, "law": result.law, "outcome": outcome,
            });
            if !why.is_empty() {
                value["reason"] = why.into();
            }
            if !result.transcripts.is_empty() {
                value["transcripts"] = json!(result.transcripts);
            }
            value
        });
        let results: Vec<Value> = results.collect();
        json!({
            "host": self.host, "protocolVersion": self.version, "seed": self.seed,
            "held": self.count("held"), "broken": self.count("broken"),
            "notOffered": self.count("not offered"), "checks": results,
        })
    }

    /// Returns the results as XML of JUnit: a test case per check.
    pub fn junit(&self) -> String {
        let counts = format!(
            "tests=\"{}\" failures=\"{}\" skipped=\"{}\"",
            self.results.len(),
            self.count("broken"),
            self.count("not offered")
        );
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  \
             <testsuite name=\"ahp-sidecar conform\" {counts}>\n"
        );
        for result in &self.results {
            let (chapter, name) = (escaped(result.chapter), escaped(result.name));
            let (word, why) = result.outcome.parts();
            let why = escaped(why);
            // Writing to a text does not fail.
            let case = format!("    <testcase classname=\"{chapter}\" name=\"{name}\"");
            let written = match word {
                "held" => writeln!(xml, "{case}/>"),
                "broken" => {
                    let shown = escaped(&result.transcripts.join("\n"));
                    writeln!(
                        xml,
                        "{case}>\n      <failure message=\"{why}\">{shown}</failure>\n    </testcase>"
                    )
                }
                _ => writeln!(xml, "{case}>\n      <skipped message=\"{why}\"/>\n    </testcase>"),
            };
            written.unwrap_or_default();
        }
        xml + "  </testsuite>\n</testsuites>\n"
    }
}

/// Returns a line that a terminal does not obey.
fn printable(line: &str) -> String {
    line.replace(char::is_control, "\u{fffd}")
}
