# Has bash tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read in the place of the user's own file, which it reads. In front of it stands an assignment: `__ahp` is an array whose
# element 0 is the word. The marks are expansions in PS0 and PS1. A command of the shell itself would be seen by
# traps, by `set -x`, and by whoever has a DEBUG trap armed at the end of PROMPT_COMMAND, so the shell runs none: what needs
# commands runs in a process of its own, with POSIXLY_CORRECT, where `unset` is no function, and with its trace thrown away.
#
# __ahp: 0 the word; 1 the number that the history gives the next line; 2 whether PS1 has said how the last line ended;
# 3 unset, 4 what __ahp_begins or __ahp_ended has answered, in octal digits; 5 unset, 6 set; 7 to 9 and 12 the texts below; 10 the user's files' exit status;
# 11 set for a login shell. An array is never exported, not even with `set -a`.

# All of it is one command, read before any of it runs: aliases and `set -v` of the user's files change nothing in it.
{
  # Tells the line that begins, unless the history was told to leave it out: then nobody knows it. Prints 1 when
  # PROMPT_COMMAND is to say how it ends, as PS1 does not, and 20 when nothing may be told any more: see __ahp_ended.
  __ahp_begins() {
    POSIXLY_CORRECT=1
    unset -f builtin history printf
    set +euE
    __ahp_line= __ahp_newest=$(unset HISTTIMEFORMAT && builtin history 1)
    __ahp_newest=${__ahp_newest#"${__ahp_newest%%[![:space:]]*}"}
    __ahp_number=${__ahp_newest%%[!0-9]*}
    if [[ -z $__ahp_number || ! -o history ]]; then
      __ahp_line=
    elif (( __ahp_number >= __ahp[1] )); then
      __ahp_first=$__ahp_number
      # Without `cmdhist` each line of a command is one of the history.
      if [[ :$BASHOPTS: != *:cmdhist:* ]] && (( __ahp[1] > 0 && __ahp_number - __ahp[1] < 1000 )); then
        __ahp_first=${__ahp[1]}
        __ahp_newest=$(unset HISTTIMEFORMAT && builtin history $((__ahp_number - __ahp_first + 1)))
      fi
      for (( ; __ahp_first <= __ahp_number; __ahp_first++ )); do
        builtin printf -v __ahp_next '%5d' $((__ahp_first + 1))
        __ahp_this=${__ahp_newest%%$'\n'"$__ahp_next"[* ]" "*}
        __ahp_newest=${__ahp_newest#"$__ahp_this"$'\n'}
        __ahp_this=${__ahp_this#"${__ahp_this%%[![:space:]]*}$__ahp_first"[* ]" "}
        __ahp_line+=${__ahp_line:+$'\n'}$__ahp_this
      done
    elif [[ ${HISTCONTROL-} != *ignorespace* && ${HISTCONTROL-} != *ignoreboth* && -z ${HISTIGNORE-} ]]; then
      # The line before, once more.
      __ahp_line=${__ahp_newest#"$__ahp_number"[* ]" "}
    fi
    if [[ $__ahp_line == *CHLD* ]]; then
      builtin printf 20
      exit 0
    fi
    __ahp_line=${__ahp_line:0:16000}
    __ahp_said=${__ahp_line@Q}
    # Longer ones are not waited for.
    if (( ${#__ahp_said} > 60000 )); then
      __ahp_line=${__ahp_line:0:3000}
      __ahp_said=${__ahp_line@Q}
    fi
    builtin printf '\e]633;E;%s;%s\a\e]633;C;%s\a' "$__ahp_said" "${__ahp[0]}" "${__ahp[0]}" >/dev/tty
    # PS1 was assigned, or one of the two will be.
    if (( __ahp[2] )) && [[ $__ahp_line != *PS[01]* && $__ahp_line != *bashrc* ]]; then
      exit 0
    fi
    __ahp_readonly=$'\n'$(readonly -p)
    if [[ $__ahp_elements && ! $__ahp_readonly =~ $'\n'[^=]*\ PROMPT_COMMAND($'\n'|=|$) ]]; then
      builtin printf 1
    fi
  }

  # Tells how a line has ended. Prints 20 when nothing may be told any more: a CHLD trap would see the processes, and bash runs
  # it while it reads the next expansion.
  __ahp_ended() {
    __ahp_code=$?
    POSIXLY_CORRECT=1
    unset -f builtin printf trap
    set +euE
    if [[ $(builtin trap -p CHLD) == *\'* ]]; then
      builtin printf 20
    fi
    builtin printf '\e]633;D;%s;%s;%s\a' "$__ahp_code" "${PWD@Q}" "${__ahp[0]}" >/dev/tty
    exit 0
  }

  # Whether the prompts may be assigned, or else expanded so that they are, which no DEBUG trap and no trace sees.
  __ahp_may() {
    POSIXLY_CORRECT=1
    unset -f builtin printf trap
    set +euE
    __ahp_readonly=$'\n'$(readonly -p)
    # What is expanded before a line runs is known since 4.4.
    if (( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404 )) ||
      [[ $- == *[aTr]* || :$BASHOPTS: != *:promptvars:* || $__ahp_readonly =~ $'\n'[^=]*\ PS[01]($'\n'|=|$) ]]; then
      exit 1
    fi
    # An integer, or one whose letters are changed, would not hold the texts.
    [[ ${PS0[@]@a}${PS1[@]@a} != *[ilu]* ]] || exit 1
    [[ $(builtin trap -p CHLD) != *\'* ]] || exit 1
    if [[ $1 == assign ]]; then
      [[ $- != *x* && $(builtin trap -p DEBUG) != *\'* ]] || exit 1
    fi
    if [[ $1 != assign || ${PS1[@]@a} == *x* && $__ahp_elements ]]; then
      [[ ! $__ahp_readonly =~ $'\n'[^=]*\ PROMPT_COMMAND($'\n'|=|$) ]] || exit 1
    fi
    if [[ $1 != assign ]]; then
      [[ -z ${PS0-} && $__ahp_elements ]] || exit 1
    fi
    builtin printf '\e]633;A;%s\a' "${__ahp[0]}" >/dev/tty
  }

  __ahp[4]=0 __ahp[6]=1 __ahp_elements=
  # Before this release only the first element of PROMPT_COMMAND is run.
  if (( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501 )); then
    __ahp_elements=1
  fi
  # In PROMPT_COMMAND, where PS1 or PS0 is assigned: a subshell, for which no DEBUG trap of the shell is run. An empty PS0 is
  # put back, unless it has attributes.
  __ahp[7]='{ ! (__ahp_ended) >/dev/null 2>&1 {BASH_XTRACEFD}>&2 <"/dev/null${-//[^T]}";} <<<"${__ahp[__ahp[1]=HISTCMD,__ahp[2]=1,3]-}${__ahp[36#0${PS0[@]@a}]+${PS0:=${__ahp[8]}}}"'
  # In PS0. Nothing runs there with `set -T`, whose traps would see it, in a restricted shell, or where `{` is an alias. Each expansion stands within a sequence
  # that the terminal does not show: without `promptvars` nothing is expanded. The word is no part of an expansion, which goes
  # where file descriptor 2 goes, maybe into a file: the processes tell the terminal itself.
  __ahp[8]='\e]633;X${__ahp[36#0${-//[^Tr]}${BASH_ALIASES[{]+T}+__ahp[4]/16*5]+${__ahp[__ahp[4]=0$({ __ahp_begins; } 2>/dev/null {BASH_XTRACEFD}>&2),__ahp[2]=0,3]-}${__ahp[5+__ahp[4]]+${__ahp[7]##"${PROMPT_COMMAND[9999]:=${__ahp[7]}}"}}}\a'
  # In PS1, by way of the next text. (PS0 cannot be put back here: bash has read it by then, and keeps the place where it was.)
  # `@P` leaves `$?` as it is.
  __ahp[9]='${__ahp[36#0${-//[^Tr]}${BASH_ALIASES[{]+T}+__ahp[4]/16*5]+${__ahp[__ahp[4]=0$({ __ahp_ended; } 2>/dev/null {BASH_XTRACEFD}>&2),3]-}}'
  # Where PS1 is exported later, other shells inherit it: they expand nothing of this, and the characters are those that
  # `\[\e` and `\a\]` mean in bash, so that a terminal shows nothing of it in any shell.
  __ahp[12]=$'\001\e]633;X${__ahp:+${__ahp[__ahp[1]=\\!,__ahp[2]=1,9]@P}}\a\002'

  # The file in which the word came may go.
  (POSIXLY_CORRECT=1; unset -f builtin printf; builtin printf '\e]633;R;%s\a' "${__ahp[0]}" >&2)

  if [[ -n ${__ahp[11]-} ]]; then
    # A shell for logging in does not read this file, so it does what such a shell does.
    if [[ -r /etc/profile ]]; then . /etc/profile; fi
    if [[ -r ~/.bash_profile ]]; then
      . ~/.bash_profile
    elif [[ -r ~/.bash_login ]]; then
      . ~/.bash_login
    elif [[ -r ~/.profile ]]; then
      . ~/.profile
    fi
  elif [[ -r ~/.bashrc ]]; then
    . ~/.bashrc
  fi
  {
    # With `set -T` a DEBUG trap would see what runs in a subshell, so nothing does.
    if (POSIXLY_CORRECT=1) 2>/dev/null {BASH_XTRACEFD}>&2 <"/dev/null${-//[^T]}"; then
      if (__ahp_may assign) 2>/dev/null {BASH_XTRACEFD}>&2; then
        PS0=${__ahp[8]}${PS0-}
        # Other shells that inherit the prompt would not understand it.
        if [[ ${PS1[@]@a} == *x* && $__ahp_elements ]]; then
          PROMPT_COMMAND[9999]=${__ahp[7]}
        else
          PS1=${__ahp[12]}${PS1-}
        fi
      elif (__ahp_may expand) 2>/dev/null {BASH_XTRACEFD}>&2; then
        # A function is defined, which is a command that nobody sees; what counts is what is expanded.
        { __ahp_may() { :; }; } <<<"${PS0:=${__ahp[8]}}${PROMPT_COMMAND[9999]:=${__ahp[7]}}"
      fi
      (POSIXLY_CORRECT=1; exit "${__ahp[10]-0}") 2>/dev/null {BASH_XTRACEFD}>&2
    fi
  } 2>&"2${__ahp[__ahp[10]=$?,3]-}"
}
