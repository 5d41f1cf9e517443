# Has fish tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read behind the user's own files. In front of it stands an assignment: `__ahp_word` is the word.

if status is-interactive
    function __ahp_begins --on-event fish_preexec
        set -l line $argv[1]
        # The history does not keep it.
        if builtin string match -q ' *' -- "$line"; or set -q fish_private_mode
            set line ''
        end
        set line (builtin string sub -l 16000 -- "$line" | builtin string collect)
        set line (builtin string escape --style=url -- "$line" | builtin string replace -a '%' '\\x')
        builtin printf '\e]633;E;%s;%s\a\e]633;C;%s\a' "$line" $__ahp_word $__ahp_word
    end

    function __ahp_ended --on-event fish_postexec
        builtin printf '\e]633;D;%s;%s\a' $status $__ahp_word
    end

    function __ahp_prompts --on-event fish_prompt
        builtin printf '\e]633;P;Cwd=%s;%s\a\e]633;A;%s\a' (builtin string escape --style=url -- "$PWD" | builtin string replace -a '%' '\\x') $__ahp_word $__ahp_word
    end

    # The file in which the word came may go.
    builtin printf '\e]633;R;%s\a' $__ahp_word
else
    set -e __ahp_word
end
