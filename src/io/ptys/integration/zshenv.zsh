# Has zsh tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read first of all files; the user's own are read where they are.

if (( ${+AHP_SIDECAR_ZDOTDIR} )); then
  ZDOTDIR=$AHP_SIDECAR_ZDOTDIR
  unset AHP_SIDECAR_ZDOTDIR
else
  unset ZDOTDIR
fi
__ahp_word=${AHP_SIDECAR_SHELL_WORD-}
unset AHP_SIDECAR_SHELL_WORD
if [[ -o rcs && -r ${ZDOTDIR:-$HOME}/.zshenv ]]; then
  source "${ZDOTDIR:-$HOME}/.zshenv"
fi

if [[ -o interactive && -n $__ahp_word ]]; then
  # The text without what would end the sequence that it stands in.
  __ahp_escaped() {
    emulate -L zsh
    setopt no_multibyte
    local text=$1 byte rest
    text=${text//\\/\\\\}
    text=${text//;/\\x3b}
    text=${text//$'\n'/\\x0a}
    if [[ $text == *[[:cntrl:]]* ]]; then
      rest=$text text=
      while [[ -n $rest ]]; do
        byte=${rest[1]} rest=${rest[2,-1]}
        [[ $byte == [[:cntrl:]] ]] && printf -v byte '\\x%02x' "'$byte"
        text+=$byte
      done
    fi
    print -rn -- "$text"
  }

  # Each of the two is put where it belongs by the other one, when somebody has taken it away.
  __ahp_begins() {
    emulate -L zsh
    (( ${precmd_functions[(Ie)__ahp_ended]} )) || precmd_functions=(__ahp_ended $precmd_functions)
    local line=${1[1,16000]}
    print -rn -- $'\e]633;E;'"$(__ahp_escaped "$line");$__ahp_word"$'\a\e]633;C;'"$__ahp_word"$'\a'
  }

  __ahp_ended() {
    local code=$?
    emulate -L zsh
    (( ${preexec_functions[(Ie)__ahp_begins]} )) || preexec_functions=(__ahp_begins $preexec_functions)
    if [[ -n ${__ahp_prompted-} ]]; then
      print -rn -- $'\e]633;D;'"$code;$__ahp_word"$'\a'
    fi
    typeset -g __ahp_prompted=1
    print -rn -- $'\e]633;P;Cwd='"$(__ahp_escaped "$PWD");$__ahp_word"$'\a\e]633;A;'"$__ahp_word"$'\a'
    return $code
  }

  typeset -ga precmd_functions preexec_functions
  precmd_functions=(__ahp_ended $precmd_functions)
  preexec_functions=(__ahp_begins $preexec_functions)
fi
