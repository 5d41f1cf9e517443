/* An ACP agent as a program of Windows. Its first line of a prompt says what it does:
 *
 *   arguments   says its arguments, one a line, and its folder
 *   console     says whether a window shows its console
 *   child MARK  starts itself as a process that only waits, and says that process's id
 *
 * `--idle MARK` waits for ever; MARK is found in the list of processes. `--stubborn` goes on after the end of stdin.
 * `--ended FILE` creates FILE at the end of stdin. `--with NAME=VALUE PROGRAM …` runs a program with this variable, which
 * wine would not take over from its own environment. `--child MARK` starts the process that only waits; `--size` says how
 * many columns and rows the console has.
 *
 * Named like a shell, `pwsh.exe` or `cmd.exe`, it is the command prompt of the system, with the handles of its console:
 * wine leaves a program that a pseudo console starts without any.
 */
#include <process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static char line[1 << 20];

/* Copies the string member NAME of the line into OUT, with its escapes; empty if there is none. */
static const char *member(const char *name, char *out, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *at = strstr(line, key);
    size_t count = 0;
    if (at) {
        for (at += strlen(key); *at && *at != '"' && count + 2 < size; at++) {
            if (*at == '\\') out[count++] = *at++;
            out[count++] = *at;
        }
    }
    out[count] = 0;
    return out;
}

/* Writes a string as the inside of one of JSON. */
static void put(const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        if (*text == '\n') fputs("\\n", stdout);
        else putchar(*text);
    }
}

static void start_child(const char *mark) {
    char program[MAX_PATH], command[2 * MAX_PATH];
    STARTUPINFOA start = {.cb = sizeof start};
    PROCESS_INFORMATION child;
    GetModuleFileNameA(NULL, program, sizeof program);
    snprintf(command, sizeof command, "\"%s\" --idle %s", program, mark);
    if (!CreateProcessA(NULL, command, NULL, NULL, FALSE, DETACHED_PROCESS, NULL, NULL, &start, &child)) exit(3);
    printf("%lu", child.dwProcessId);
}

static void say_size(void) {
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &info)) exit(3);
    printf("size %dx%d\n", info.srWindow.Right - info.srWindow.Left + 1, info.srWindow.Bottom - info.srWindow.Top + 1);
}

/* Runs the command prompt with ARGUMENTS; returns its exit status. */
static int run_prompt(const char *arguments) {
    static char command[1 << 15];
    char folder[MAX_PATH];
    SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
    STARTUPINFOA start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES};
    PROCESS_INFORMATION child;
    DWORD status;
    start.hStdInput = CreateFileA("CONIN$", GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited,
                                  OPEN_EXISTING, 0, NULL);
    start.hStdOutput = CreateFileA("CONOUT$", GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited,
                                   OPEN_EXISTING, 0, NULL);
    start.hStdError = start.hStdOutput;
    GetSystemDirectoryA(folder, sizeof folder);
    snprintf(command, sizeof command, "\"%s\\cmd.exe\" %s", folder, arguments);
    if (!CreateProcessA(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &start, &child)) return 3;
    WaitForSingleObject(child.hProcess, INFINITE);
    return GetExitCodeProcess(child.hProcess, &status) ? (int)status : 3;
}

/* Returns the command line behind the name of the program. */
static const char *arguments(void) {
    const char *at = GetCommandLineA();
    char end = *at == '"' ? '"' : ' ';
    for (at++; *at && *at != end; at++) {}
    return *at ? at + 1 : at;
}

static int is_named(const char *name) {
    char program[MAX_PATH];
    GetModuleFileNameA(NULL, program, sizeof program);
    return !_stricmp(strrchr(program, '\\') + 1, name);
}

static void play(const char *text, int count, char **words) {
    char folder[MAX_PATH];
    if (!strncmp(text, "arguments", 9)) {
        for (int i = 1; i < count; i++) put(words[i]), put("\n");
        GetCurrentDirectoryA(sizeof folder, folder);
        put(folder);
    } else if (!strncmp(text, "console", 7)) {
        put(GetConsoleWindow() ? "a window" : "no window");
    } else if (!strncmp(text, "child ", 6)) {
        start_child(text + 6);
    }
}

int main(int count, char **words) {
    char method[64], session[64], text[4096];
    const char *ended = NULL;
    int stubborn = 0, sessions = 0;
    if (is_named("cmd.exe")) return run_prompt(arguments());
    if (is_named("pwsh.exe")) return run_prompt("/d");
    if (count > 3 && !strcmp(words[1], "--with")) {
        _putenv(words[2]);
        return (int)_spawnv(_P_WAIT, words[3], (const char *const *)words + 3);
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--idle")) Sleep(INFINITE);
        if (!strcmp(words[i], "--size")) return say_size(), 0;
        if (!strcmp(words[i], "--child")) return start_child(words[i + 1]), 0;
        if (!strcmp(words[i], "--stubborn")) stubborn = 1;
        if (!strcmp(words[i], "--ended")) ended = words[i + 1];
    }
    while (fgets(line, sizeof line, stdin)) {
        const char *id = strstr(line, "\"id\":");
        if (!*member("method", method, sizeof method) || !id) continue;
        long number = atol(id + 5);
        if (!strcmp(method, "session/prompt")) {
            member("sessionId", session, sizeof session);
            printf("{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"%s\",\"update\":"
                   "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"", session);
            play(member("text", text, sizeof text), count, words);
            printf("\"}}}}\n{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{\"stopReason\":\"end_turn\"}}\n", number);
        } else if (!strcmp(method, "initialize")) {
            printf("{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{},"
                   "\"agentInfo\":{\"name\":\"agent\",\"title\":\"Agent of Windows\",\"version\":\"1\"}}}\n", number);
        } else if (!strcmp(method, "session/new")) {
            printf("{\"jsonrpc\":\"2.0\",\"id\":%ld,\"result\":{\"sessionId\":\"s%d\"}}\n", number, ++sessions);
        } else {
            printf("{\"jsonrpc\":\"2.0\",\"id\":%ld,\"error\":{\"code\":-32601,\"message\":\"unknown\"}}\n", number);
        }
        fflush(stdout);
    }
    if (ended) fclose(fopen(ended, "w"));
    if (stubborn) Sleep(INFINITE);
    return 0;
}
