/* An ACP agent as a program of Windows. Its first line of a prompt says what it does:
 *
 *   arguments   says its arguments, one a line, and its folder
 *   console     says whether a window shows its console
 *   child MARK  starts itself as a process that only waits, and says that process's id
 *
 * `--idle MARK` waits for ever; MARK is found in the list of processes. `--stubborn` goes on after the end of stdin.
 * `--ended FILE` creates FILE at the end of stdin. `--with NAME=VALUE PROGRAM …` runs a program with this variable, which
 * wine would not take over from its own environment.
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
    if (count > 3 && !strcmp(words[1], "--with")) {
        _putenv(words[2]);
        return (int)_spawnv(_P_WAIT, words[3], (const char *const *)words + 3);
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--idle")) Sleep(INFINITE);
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
