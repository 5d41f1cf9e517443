# Has PowerShell tell the terminal which lines it runs: before each line what it is, and behind it how it ended.
# Read behind the user's own profile. In front of it stands an assignment of the word.

if ($global:__ahpWord) {
    $global:__ahpRuns = $false
    $global:__ahpPrompt = $function:prompt

    # The text without what would end the sequence that it stands in.
    function global:__ahpEscaped([string] $text) {
        [regex]::Replace($text, '[\\;$''\x00-\x1f\x7f]', {
            param($found)
            if ($found.Value -eq '\') { '\\' } else { '\x{0:x2}' -f [int][char]$found.Value }
        })
    }

    function global:prompt {
        # First, before anything changes them.
        $succeeded = $?
        $code = if ($succeeded) { 0 } elseif ($global:LASTEXITCODE) { $global:LASTEXITCODE } else { 1 }
        $said = ''
        if ($global:__ahpRuns) {
            $said = "`e]633;D;$code;$global:__ahpWord`a"
            $global:__ahpRuns = $false
        }
        $place = $ExecutionContext.SessionState.Path.CurrentFileSystemLocation.ProviderPath
        $said += "`e]633;P;Cwd=$(__ahpEscaped $place);$global:__ahpWord`a`e]633;A;$global:__ahpWord`a"
        [Console]::Write($said)
        & $global:__ahpPrompt
    }

    if (Get-Command PSConsoleHostReadLine -ErrorAction SilentlyContinue) {
        $global:__ahpReadLine = $function:PSConsoleHostReadLine
        # The file in which the word came may go.
        [Console]::Write("`e]633;R;$global:__ahpWord`a")
        function global:PSConsoleHostReadLine {
            $line = & $global:__ahpReadLine
            if ($line.Trim()) {
                $global:__ahpRuns = $true
                $shown = $line.Substring(0, [Math]::Min($line.Length, 16000))
                [Console]::Write("`e]633;E;$(__ahpEscaped $shown);$global:__ahpWord`a`e]633;C;$global:__ahpWord`a")
            }
            $line
        }
    }
}
