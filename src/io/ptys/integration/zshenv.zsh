# Has zsh tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read first of all files; the user's own are read where they are. In front of it stand assignments: `__ahp_word` is the word,
# and `__ahp_zdotdir` where the user's files are, if that is said.

if (( ${+__ahp_zdotdir} )); then
  ZDOTDIR=$__ahp_zdotdir
  unset __ahp_zdotdir
else
  unset ZDOTDIR
fi

# A DEBUG trap of the user's files would see each command of the functions below: then there are none.
__ahp_traps() {
  emulate -L zsh
  local file
  for file in {/etc,/etc/zsh}/{zprofile,zshrc,zlogin} ${ZDOTDIR:-$HOME}/.{zshenv,zprofile,zshrc,zlogin}; do
    if [[ -r $file && -n ${(M)${(f)"$(<$file)"}:#*(trap|TRAP)*DEBUG*} ]]; then
      return 0
    fi
  done
  return 1
}

if [[ -o interactive ]] && ! __ahp_traps; then
  # What is defined so runs with these options, whatever the user's are: no trace shows it.
  emulate zsh -o no_xtrace -o no_verbose -o extended_glob -c '
    # Whatever functions there are: they are not called. Where all of these names are taken nothing is told.
    # The terminal itself is told: file descriptor 1 may be a file by now. A restricted shell cannot tell it.
    __ahp_tell() {
      if [[ -o restricted ]]; then
        return 0
      fi
      if (( ! ${+functions[builtin]} )); then
        builtin print -rn -- "$1"
      elif (( ! ${+functions[print]} )); then
        print -rn -- "$1"
      elif (( ! ${+functions[printf]} )); then
        printf %s "$1"
      fi 2>/dev/null >/dev/tty
    }

    # Each of the two is put where it belongs by the other one, when somebody has taken it away.
    __ahp_begins() {
      local line=$1 word=${1%%[[:space:]]*} MATCH MBEGIN MEND
      # A DEBUG trap would see each command of these functions, so they are called no more.
      if [[ $line == *(trap|TRAP)*DEBUG* ]]; then
        precmd_functions=("${(@)precmd_functions:#__ahp_ended}") preexec_functions=("${(@)preexec_functions:#__ahp_begins}")
      else
        if (( ! ${precmd_functions[(Ie)__ahp_ended]} )) && [[ ${(t)precmd_functions} != *readonly* ]]; then
          precmd_functions=(__ahp_ended "${(@)precmd_functions}")
        fi
        # The history does not keep it.
        if [[ -o hist_ignore_space && ( $line == " "* || ${aliases[$word]-} == " "* ) ]] ||
          (( ${+functions[zshaddhistory]} + ${#zshaddhistory_functions} )); then
          line=
        fi
        line=${(qqqq)${line[1,16000]}}
        if (( $#line > 60000 )); then
          line=${(qqqq)${1[1,3000]}}
        fi
        __ahp_tell "${__ahp_esc}]633;E;$line;$__ahp_word${__ahp_bel}${__ahp_esc}]633;C;$__ahp_word${__ahp_bel}"
      fi
    }

    __ahp_ended() {
      local code=$?
      if (( ! ${preexec_functions[(Ie)__ahp_begins]} )) && [[ ${(t)preexec_functions} != *readonly* ]]; then
        preexec_functions=(__ahp_begins "${(@)preexec_functions}")
      fi
      __ahp_tell "${__ahp_esc}]633;D;$code;${(qqqq)PWD};$__ahp_word${__ahp_bel}"
    }
  '
  typeset -g __ahp_esc=$'\e' __ahp_bel=$'\a'
  typeset -ga precmd_functions preexec_functions
  precmd_functions=(__ahp_ended $precmd_functions)
  preexec_functions=(__ahp_begins $preexec_functions)
  # The file in which the word came may go.
  __ahp_tell $'\e]633;R;'"$__ahp_word"$'\a'
else
  unset __ahp_word
fi
unfunction __ahp_traps
if [[ -o rcs && -r ${ZDOTDIR:-$HOME}/.zshenv ]]; then
  source "${ZDOTDIR:-$HOME}/.zshenv"
fi
