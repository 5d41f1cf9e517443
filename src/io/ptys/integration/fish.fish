# Has fish tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read behind the user's own files.

if status is-interactive; and set -q AHP_SIDECAR_SHELL_WORD
    set -g __ahp_word $AHP_SIDECAR_SHELL_WORD
    set -e AHP_SIDECAR_SHELL_WORD

    # The text without what would end the sequence that it stands in.
    function __ahp_escaped
        set -l text (string replace -a '\\' '\\\\' -- "$argv" | string replace -a ';' '\\x3b' | string collect)
        set text (string replace -a \e '\\x1b' -- "$text" | string replace -a \a '\\x07' | string collect)
        string join '\\x0a' -- (string split \n -- "$text")
    end

    function __ahp_begins --on-event fish_preexec
        printf '\e]633;E;%s;%s\a\e]633;C;%s\a' (__ahp_escaped (string sub -l 16000 -- "$argv[1]" | string collect)) $__ahp_word $__ahp_word
    end

    function __ahp_ended --on-event fish_postexec
        printf '\e]633;D;%s;%s\a' $status $__ahp_word
    end

    function __ahp_prompts --on-event fish_prompt
        printf '\e]633;P;Cwd=%s;%s\a\e]633;A;%s\a' (__ahp_escaped "$PWD") $__ahp_word $__ahp_word
    end
end
