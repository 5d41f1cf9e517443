# Has bash tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read in the place of the user's own file, which is read first.

if [[ -n ${AHP_SIDECAR_LOGIN-} ]]; then
  unset AHP_SIDECAR_LOGIN
  __ahp_word=$AHP_SIDECAR_SHELL_WORD
  unset AHP_SIDECAR_SHELL_WORD
  if [[ -r /etc/profile ]]; then . /etc/profile; fi
  if [[ -r ~/.bash_profile ]]; then
    . ~/.bash_profile
  elif [[ -r ~/.bash_login ]]; then
    . ~/.bash_login
  elif [[ -r ~/.profile ]]; then
    . ~/.profile
  fi
else
  __ahp_word=${AHP_SIDECAR_SHELL_WORD-}
  unset AHP_SIDECAR_SHELL_WORD
  if [[ -r ~/.bashrc ]]; then . ~/.bashrc; fi
fi

# The text without what would end the sequence that it stands in. Slow, where it holds control characters.
__ahp_escaped() {
  local LC_ALL=C text=${1//\\/\\\\} rest byte
  text=${text//;/\\x3b}
  text=${text//$'\n'/\\x0a}
  if [[ $text == *[[:cntrl:]]* ]]; then
    rest=$text text=
    while [[ -n $rest ]]; do
      byte=${rest:0:1} rest=${rest:1}
      [[ $byte == [[:cntrl:]] ]] && printf -v byte '\\x%02x' "'$byte"
      text+=$byte
    done
  fi
  builtin printf '%s' "$text"
}

# The number of the newest line of the history.
__ahp_newest() {
  local HISTTIMEFORMAT= newest
  newest=$(builtin history 1)
  newest=${newest#"${newest%%[![:space:]]*}"}
  builtin printf '%s' "${newest%%[!0-9]*}"
}

# A line begins. Which one the history tells, unless it was told to leave the line out: then nobody knows.
__ahp_begins() {
  local HISTTIMEFORMAT= newest number line= known=1
  newest=$(builtin history 1)
  newest=${newest#"${newest%%[![:space:]]*}"}
  number=${newest%%[!0-9]*}
  if [[ $number == "${__ahp_number-}" ]]; then
    # It is the line before, or one that is not to be remembered.
    [[ ${HISTCONTROL-} == *ignorespace* || ${HISTCONTROL-} == *ignoreboth* || -n ${HISTIGNORE-} || ! -o history ]] && known=
  fi
  if [[ -n $known ]]; then
    line=${newest#"$number"}
    line=${line#[ *]}
    line=${line# }
  fi
  builtin printf '\e]633;E;%s;%s\a\e]633;C;%s\a' "$(__ahp_escaped "${line:0:16000}")" "$__ahp_word" "$__ahp_word"
}

# A line has ended, or was empty.
__ahp_ended() {
  local code=$?
  if [[ -n ${__ahp_prompted-} ]]; then
    builtin printf '\e]633;D;%s;%s\a' "$code" "$__ahp_word"
  fi
  __ahp_prompted=1
  builtin printf '\e]633;P;Cwd=%s;%s\a\e]633;A;%s\a' "$(__ahp_escaped "$PWD")" "$__ahp_word" "$__ahp_word"
  __ahp_number=$(__ahp_newest)
  # Whoever sets it anew keeps what is there.
  if [[ ${PS0-} != *__ahp_begins* ]]; then
    PS0=$__ahp_before${PS0-}
  fi
  return "$code"
}

# What is called before a line runs is known since 4.4.
if [[ -n $__ahp_word && $- == *i* ]]; then
  if (( BASH_VERSINFO[0] > 5 || (BASH_VERSINFO[0] == 5 && BASH_VERSINFO[1] >= 1) )); then
    # Each element is run, and told the same exit code. Whoever assigns a text sets the first one alone, and the user's own keep
    # their places. Who assigns all of them takes ours away: before the next line it is put there again.
    __ahp_behind='__ahp_ended || :'
    __ahp_before='${__ahp_word:+$(__ahp_begins)${__ahp_behind##"${PROMPT_COMMAND[9999]:=$__ahp_behind}"}}'
    PROMPT_COMMAND[9999]=$__ahp_behind
  elif (( BASH_VERSINFO[0] == 5 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4) )); then
    # Only the first element is run.
    __ahp_before='${__ahp_word:+$(__ahp_begins)}'
    PROMPT_COMMAND=__ahp_ended${PROMPT_COMMAND:+$'\n'$PROMPT_COMMAND}
  fi
fi
