"""The agents: what is installed of each, how it is run, and what it was seen to do.

In texts `{url}` is the scripted model, `{home}` the agent's own empty home, `{bin}` where npm has put its programs; in
the arguments of tools `{command}`, `{file}`, `{old}` and `{new}` are what a scene says.

`shows` is what clients see of it; what is not in there the agent does not say.
"""

from dataclasses import dataclass, field


@dataclass
class Agent:
    packages: list
    command: list
    environment: dict = field(default_factory=dict)
    # What is in its home, by path: text, or what is written as JSON.
    files: dict = field(default_factory=dict)
    # The model's calls of its tools: name and arguments.
    shell: tuple = ()
    read: tuple = ()
    edit: tuple = ()
    write: tuple = ()
    # What leaves a command running, and the mode in which it changes files unasked: it goes on by itself when such a
    # command has ended.
    background: tuple = ()
    unasked: str = ""
    # It takes in what the user adds while it works.
    steers: bool = False
    # It asks the user this: {question} with {answer} among the answers.
    question: tuple = ()
    # What it has the model call a client's tool `look`; nothing: such tools do not reach it.
    client_tool: str = ""
    # It can be told of others later.
    hears_of_late_tools: bool = True
    # Its MCP servers are switched while a session is open.
    switches_servers: bool = True
    # It asks before it runs a command or changes a file: what it calls to allow that once.
    once: str = ""
    # What has it sum up what was said.
    compacts: str = ""
    # It says in its answer that it asks its model again, which clients see apart from that.
    tells_of_retries: bool = False
    # How a turn ends in which the model fails.
    failure: str = "chat/error"
    # It says so; else such a turn is empty.
    admits: bool = True
    # It takes a conversation up again by itself. None: now and then.
    remembers: bool | None = True
    shows: frozenset = frozenset()
    # Its own terminal program, asked something once: a session of the agent that others can go on with.
    terminal: tuple = ()
    # It keeps one session at a time.
    one_session: bool = False
    # Without its key: the way to log in that a key goes with, what its environment lacks then, and files in its home
    # that are others.
    key: tuple = ()
    # It plays a scene of its own, whatever it is asked.
    fixed: bool = False


CODEX = """
model = "gpt-5.5"
model_provider = "fake"
approval_policy = "{approval}"
sandbox_mode = "{sandbox}"
model_reasoning_summary = "detailed"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
"""
PATCH = ("apply_patch", {
    "input": "*** Begin Patch\n*** Update File: {file}\n@@\n-{old}\n+{new}\n*** End Patch"})
NEW_FILE = ("apply_patch", {"input": "*** Begin Patch\n*** Add File: {file}\n+{new}\n*** End Patch"})


def codex_toml(approval, sandbox):
    return CODEX.replace("{approval}", approval).replace("{sandbox}", sandbox)


AGENTS = {
    "claude": Agent(
        packages=["@agentclientprotocol/claude-agent-acp@0.100.0"],
        command=["claude-agent-acp"],
        environment={
            "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "x", "CLAUDE_CONFIG_DIR": "{home}/.claude",
            "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1", "ENABLE_TOOL_SEARCH": "false", "CLAUDE_CODE_MAX_RETRIES": "1",
        },
        once="allow-once",
        shell=("Bash", {"command": "{command}", "description": "Runs it"}),
        read=("Read", {"file_path": "{file}"}),
        edit=("Edit", {"file_path": "{file}", "old_string": "{old}", "new_string": "{new}"}),
        write=("Write", {"file_path": "{file}", "content": "{new}\n"}),
        question=("AskUserQuestion", {"questions": [{
            "question": "{question}", "header": "Asks", "multiSelect": False,
            "options": [{"label": "{answer}", "description": "This"}, {"label": "other", "description": "That"}]}]}),
        client_tool="mcp__ahpclient__look",
        compacts="/compact",
        background=("Bash", {"command": "{command}", "description": "Builds it", "run_in_background": True}),
        unasked="acceptEdits",
        terminal=("{bin}/../@anthropic-ai/claude-agent-sdk-{platform}/claude", "-p", "SAY {word} it was"),
        steers=True,
        shows=frozenset({"title", "usage", "output", "change"}),
    ),
    "opencode": Agent(
        packages=["opencode-ai@1.18.33"],
        command=["opencode", "acp"],
        environment={
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        files={".config/opencode/opencode.json": {
            "model": "fake/fake-model", "small_model": "fake/fake-model", "share": "disabled", "autoupdate": False,
            "enabled_providers": ["fake"], "permission": {"edit": "ask", "bash": "ask"},
            "provider": {"fake": {
                "npm": "@ai-sdk/openai-compatible", "name": "Fake",
                "options": {"baseURL": "{url}/v1", "apiKey": "x"},
                "models": {"fake-model": {"name": "Fake model", "reasoning": True, "tool_call": True,
                                          "limit": {"context": 200000, "output": 8192}}}}},
        }},
        once="once",
        shell=("bash", {"command": "{command}", "description": "Runs it"}),
        read=("read", {"filePath": "{file}"}),
        edit=("edit", {"filePath": "{file}", "oldString": "{old}", "newString": "{new}"}),
        write=("write", {"filePath": "{file}", "content": "{new}\n"}),
        client_tool="ahpclient_look",
        terminal=("{bin}/opencode", "run", "SAY", "{word}", "it", "was"),
        shows=frozenset({"usage", "output", "change"}),
    ),
    "codex": Agent(
        packages=["@agentclientprotocol/codex-acp@2.6.0"],
        command=["codex-acp"],
        environment={"CODEX_HOME": "{home}/.codex", "FAKE_KEY": "x", "INITIAL_AGENT_MODE": "read-only"},
        files={".codex/config.toml": codex_toml("on-request", "read-only")},
        once="allow_once",
        shell=("exec_command", {"cmd": "{command}", "sandbox_permissions": "require_escalated",
                                "justification": "It is a test"}),
        edit=PATCH,
        write=NEW_FILE,
        # It offers it when the model has searched for it.
        client_tool="!mcp__ahpclient/look",
        steers=True,
        failure="chat/turnComplete",
        key=("api-key", ["FAKE_KEY"], {
            ".codex/config.toml": codex_toml("on-request", "read-only").replace(
                'env_key = "FAKE_KEY"', "requires_openai_auth = true")}),
        shows=frozenset({"title", "usage", "output", "change"}),
    ),
    "copilot": Agent(
        packages=["@github/copilot@1.0.102"],
        command=["copilot", "--acp"],
        environment={
            "COPILOT_HOME": "{home}/.copilot", "COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "x", "COPILOT_MODEL": "fake-model", "COPILOT_AUTO_UPDATE": "false",
        },
        once="allow_once",
        shell=("bash", {"command": "{command}", "description": "Runs it"}),
        read=("view", {"path": "{file}"}),
        edit=("edit", {"path": "{file}", "old_str": "{old}", "new_str": "{new}"}),
        write=("create", {"path": "{file}", "file_text": "{new}\n"}),
        failure="chat/turnComplete",
        shows=frozenset({"usage", "output", "change"}),
    ),
    "gemini": Agent(
        packages=["@google/gemini-cli@0.61.0"],
        command=["gemini", "--acp", "-m", "gemini-2.5-pro"],
        environment={
            "GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        files={".gemini/settings.json": {
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}},
        once="proceed_once",
        shell=("run_shell_command", {"command": "{command}", "description": "Runs it"}),
        read=("read_file", {"file_path": "{file}"}),
        edit=("replace", {"file_path": "{file}", "instruction": "Change it", "old_string": "{old}",
                          "new_string": "{new}"}),
        write=("write_file", {"file_path": "{file}", "content": "{new}\n"}),
        client_tool="mcp_ahpclient_look",
        switches_servers=False,
        key=("gemini-api-key", ["GEMINI_API_KEY"], {}),
        # What it loads it has overwritten before, within the minute in which it began.
        remembers=None,
        shows=frozenset({"usage", "change"}),
    ),
    "qwen": Agent(
        packages=["@qwen-code/qwen-code@0.24.4"],
        command=["qwen", "--acp", "--auth-type", "openai", "--approval-mode", "default"],
        environment={"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": "fake-model"},
        once="proceed_once",
        shell=("run_shell_command", {"command": "{command}", "description": "Runs it", "is_background": False}),
        read=("read_file", {"file_path": "{file}"}),
        edit=("edit", {"file_path": "{file}", "old_string": "{old}", "new_string": "{new}"}),
        write=("write_file", {"file_path": "{file}", "content": "{new}\n"}),
        question=("ask_user_question", {"questions": [{
            "question": "{question}", "header": "Asks", "multiSelect": False,
            "options": [{"label": "{answer}", "description": "This"}, {"label": "other", "description": "That"}]}]}),
        # It offers it when the model has searched for it.
        client_tool="!mcp__ahpclient__look",
        background=("run_shell_command", {"command": "{command}", "description": "Builds it", "is_background": True}),
        unasked="auto-edit",
        hears_of_late_tools=False,
        switches_servers=False,
        shows=frozenset({"usage", "output", "change"}),
    ),
    "zed-codex": Agent(
        packages=["@zed-industries/codex-acp@0.16.0"],
        command=["codex-acp"],
        environment={"CODEX_HOME": "{home}/.codex", "FAKE_KEY": "x"},
        files={".codex/config.toml": codex_toml("untrusted", "danger-full-access")},
        once="approved",
        shell=("exec_command", {"cmd": "{command}"}),
        edit=PATCH,
        write=NEW_FILE,
        client_tool="mcp__ahpclient/look",
        shows=frozenset({"usage", "output", "change"}),
    ),
    "pi": Agent(
        packages=["pi-acp@0.0.34", "@earendil-works/pi-coding-agent@0.87.1"],
        command=["pi-acp"],
        environment={"PI_ACP_PI_COMMAND": "{bin}/pi", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        files={
            ".pi/agent/settings.json": {
                "defaultProvider": "fake", "defaultModel": "fake-model", "quietStartup": True},
            ".pi/agent/models.json": {"providers": {"fake": {
                "baseUrl": "{url}/v1", "api": "openai-completions", "apiKey": "x",
                "models": [{"id": "fake-model", "name": "Fake", "reasoning": True, "contextWindow": 200000,
                            "maxTokens": 8192}]}}},
        },
        shell=("bash", {"command": "{command}"}),
        read=("read", {"path": "{file}"}),
        edit=("edit", {"path": "{file}", "edits": [{"oldText": "{old}", "newText": "{new}"}]}),
        write=("write", {"path": "{file}", "content": "{new}\n"}),
        failure="chat/turnComplete",
        tells_of_retries=True,
        admits=False,
        one_session=True,
        shows=frozenset({"usage", "output", "change"}),
    ),
    "sdk-example": Agent(
        packages=["@agentclientprotocol/sdk@1.9.0"],
        command=["node", "{bin}/../@agentclientprotocol/sdk/dist/examples/agent.js"],
        once="allow",
        fixed=True,
        remembers=False,
    ),
}

# What is run when nobody says what.
USUAL = ["claude", "opencode"]


def filled(value, **words):
    """A value with the words in its texts."""
    if isinstance(value, dict):
        return {name: filled(inner, **words) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(inner, **words) for inner in value]
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace("{" + name + "}", word)
    return value
