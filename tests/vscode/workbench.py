"""A window of VS Code's workbench: what is done in it, and what it shows.

Nothing is done before it can be done, and nothing is seen by waiting long enough: each waits for a condition.
"""

import contextlib
import time

from playwright.sync_api import Error

# How long anything may take to be on the screen, in seconds, on a machine that has other things to do.
LIMIT = 60
# How often it is looked, in seconds.
LOOK_AGAIN = 0.1
# How long something that is looked for again is waited for each time, in milliseconds.
SOON = 1000
# Whether an entry of a menu is clicked: a menu does not notice a button's being let go in the first 100 milliseconds after
# it has come, so that the click that opens a menu does not pick from it. Timers run in the order in which they are due.
TO_BE_CLICKED = """entry => new Promise(takesIt => {
    entry.addEventListener("mouseup", () => entry.isClicked = true);
    setTimeout(takesIt, 100);
})"""
IS_CLICKED = "entry => entry.isClicked"

# Both sides of each file in a list of differences, by its name.
DIFFERENCES = """entries => Object.fromEntries(entries.map(entry => {
    const top = line => parseInt(line.style.top);
    const side = which => [...entry.querySelectorAll(`.editor.${which} .view-line`)]
        .sort((one, other) => top(one) - top(other)).map(line => line.innerText.replaceAll("\\xa0", " ")).join("\\n");
    return [entry.querySelector(".label-name").innerText, [side("original"), side("modified")]];
}))"""

CHAT = ".interactive-session"
INPUT = f"{CHAT} .interactive-input-part .interactive-input-editor .monaco-editor"
AGENT = f"{CHAT} .chat-session-target-picker-item a"
MODEL = f"{CHAT} .model-picker-name"
SEND = f"{CHAT} .chat-submit-button:not(.disabled) a"
CANCEL = f"{CHAT} .chat-execute-toolbar .codicon-stop-circle"
PERMISSION = f"{CHAT} .interactive-input-part .chat-confirmation-widget2"
DIFF = ".monaco-diff-editor"
QUESTIONS = f"{CHAT} .chat-question-carousel-container"
SESSION = ".agent-sessions-viewer .agent-session-item-row"
CHOICES = ".context-view .monaco-list-row"
CHANGES = f"{CHAT} .chat-changes-pill-button"
TERMINAL = ".terminal-wrapper.active .xterm"
TERMINALS = ".terminal-tabs-entry, .tabs-list"
QUICK_INPUT = ".quick-input-widget input.input"
OUTPUT = ".output-view .monaco-editor .view-lines"
SUGGESTED = ".suggest-widget .monaco-list-rows"


class Unseen(AssertionError):
    """What was waited for did not come to the screen; says what is on it."""


class Window:
    """A window on a folder, its chat as large as it gets.

    It has a profile of its own: VS Code opens with the conversation that was open before in any window of a profile, and
    may do so while somebody types.
    """

    def __init__(self, browser, url):
        self.profile = browser.new_context(viewport={"width": 1500, "height": 1000})
        self.page = self.profile.new_page()
        self.page.set_default_timeout(LIMIT * 1000)
        self.page.goto(url, wait_until="domcontentloaded")
        self.ready()

    def close(self):
        self.profile.close()

    def ready(self):
        """Waits until the window is there, and makes its chat large, so that the list of sessions is beside it."""
        self.until("the chat", lambda: self.page.locator(INPUT).last.is_visible())
        large = self.page.get_by_label("Maximize Secondary Side Bar").first
        self.until("the button that makes the chat large, or the list of sessions",
                   lambda: large.is_visible() or self.there(".agent-sessions-viewer"))
        if large.is_visible():
            large.click()
        self.until("the list of sessions", lambda: self.there(".agent-sessions-viewer"))

    def reload(self):
        self.page.reload(wait_until="domcontentloaded")
        self.ready()

    # ---- What it shows ----

    def until(self, what, look):
        """Waits until `look` gives something that is true, and gives it back; `what` says what is waited for."""
        limit = time.monotonic() + LIMIT
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > limit:
                raise Unseen(f"not seen: {what}\n--- on the screen:\n{self.screen()}")
            self.page.wait_for_timeout(LOOK_AGAIN * 1000)

    def until_seen(self, what, look, seen):
        """The same; where it fails, what `look` has put into `seen` is told, too."""
        try:
            self.until(what, look)
        except Unseen as unseen:
            raise Unseen(f"{unseen}\n--- seen: {seen}") from None

    def there(self, selector):
        """Whether one of these is visible."""
        return any(found.is_visible() for found in self.page.locator(selector).all())

    def chat(self):
        """The text of the conversation and of what is asked about it."""
        return self.text(f"{CHAT} .interactive-list") + self.text(f"{CHAT} .interactive-input-part")

    def response(self):
        """The text of the last response."""
        return self.text(f"{CHAT} .interactive-response .value")

    def text(self, selector):
        """The text of the last of these; nothing where there is none."""
        return "".join(self.page.locator(selector).evaluate_all("all => all.slice(-1).map(one => one.innerText)"))

    def shows(self, *texts):
        """Waits until the conversation shows each of these."""
        for text in texts:
            self.until(f"`{text}` in the conversation", lambda: text in self.chat())

    def shows_texts(self, selector, *texts):
        """Waits until the last of these shows each of these texts."""
        self.until(f"{texts} in {selector}", lambda: self.has_texts(selector, *texts))

    def has_texts(self, selector, *texts):
        """Whether the last of these shows each of these texts."""
        shown = self.text(selector).replace("\xa0", " ")
        return all(text in shown for text in texts)

    def shows_difference(self, changed, file, *texts):
        """Opens a file of those that the last response has changed, and waits until it shows each of these texts."""
        response = self.page.locator(f"{CHAT} .interactive-response").last
        row = response.get_by_text(file, exact=True)

        def listed():
            if not (row.count() and row.last.is_visible()):
                with contextlib.suppress(Error):
                    response.get_by_text(changed).last.click(timeout=SOON)
            return row.count() and row.last.is_visible()

        def opened():
            # The rows move while the window is still being laid out: a click may open another one.
            with contextlib.suppress(Error):
                row.last.click(timeout=SOON)
                self.page.wait_for_timeout(SOON)
            return self.has_texts(DIFF, *texts)

        self.until(f"`{file}` below `{changed}` in the last response", listed)
        self.until(f"{texts} in the difference of `{file}`", opened)

    def changed(self, *wanted):
        """Waits until it says this of all that is changed; nothing is said when nothing is."""
        said = {}

        def says():
            texts = self.page.locator(f"{CHANGES}:visible").all_inner_texts()
            said.update(now=[" ".join(text.split()) for text in texts])
            return said["now"] == list(wanted)

        self.until_seen(f"{wanted} as what is changed", says, said)

    def opens_changes(self, wanted):
        """Opens the list of all that is changed, and waits until it shows both sides of each file, by their names."""
        self.page.locator(f"{CHANGES}:visible").click()
        shown = {}

        def all_of_it():
            shown.update(now=self.page.locator(".multiDiffEntry:visible").evaluate_all(DIFFERENCES))
            return shown["now"] == {name: list(sides) for name, sides in wanted.items()}

        self.until_seen(f"the changes {wanted}", all_of_it, shown)

    def responds(self, *texts):
        """Waits until the last response shows each of these."""
        folded = self.page.locator(f"{CHAT} .interactive-response").last.locator("summary[aria-expanded=false]")
        folded = folded.filter(has_text="Completed").first

        def seen():
            # What came before the last text of a turn is folded when the turn is over.
            if text not in self.response() and folded.count():
                with contextlib.suppress(Error):
                    folded.click(timeout=SOON)
            return text in self.response()

        for text in texts:
            self.until(f"`{text}` in the last response", seen)

    def idle(self):
        """Waits until no turn runs in the conversation."""
        self.until("the end of the turn", lambda: not self.there(CANCEL))

    def running(self):
        self.until("a running turn", lambda: self.there(CANCEL))

    def sessions(self):
        """What the list of sessions says of each: its title, and its state in parentheses."""
        return self.page.locator(SESSION).evaluate_all("all => all.map(one => one.ariaLabel)")

    def lists(self, title, state=""):
        """Waits until the list of sessions has this one."""
        label = f"{title} ({state}"
        self.until(f"a row `{label}` in the list of sessions", lambda: any(label in row for row in self.sessions()))

    def screen(self):
        """The text of all that is on the screen."""
        return "\n".join(line for line in self.page.locator("body").inner_text().splitlines() if line.strip())

    # ---- What is done in it ----

    def choose(self, agent):
        """Begins an empty conversation, and chooses an agent for it."""
        requests = self.page.locator(f"{CHAT} .interactive-request")
        if requests.count():
            self.page.locator(".monaco-button").filter(has_text="New Session").first.click()
            self.until("an empty conversation", lambda: not requests.count())
        self.until("the choice of agents", lambda: self.there(AGENT))

        def chosen():
            # The list is not filled any further while it is open.
            if not self.there(CHOICES):
                self.page.locator(AGENT).last.click()
            found = self.page.locator(CHOICES).filter(has_text=agent)
            try:
                found.first.click(timeout=SOON)
            except Error:
                self.page.keyboard.press("Escape")
            return agent in self.text(AGENT)

        self.until(f"`{agent}` as the chosen agent", chosen)

    def models(self):
        """The models that are offered, the chosen one first."""
        self.until("the choice of models", lambda: self.there(MODEL))
        self.page.locator(MODEL).last.click()
        rows = self.until("the models", lambda: self.page.locator(f"{CHOICES}.action .title").all_inner_texts())
        self.page.keyboard.press("Escape")
        return [self.text(MODEL), *rows]

    def write(self, text):
        """Types a message."""
        self.clear()
        for number, line in enumerate(text.split("\n")):
            if number:
                self.page.keyboard.press("Shift+Enter")
            self.page.keyboard.insert_text(line)
        last = text.split("\n")[-1]
        self.until("what was typed", lambda: last in self.text(INPUT).replace("\xa0", " "))
        # What is offered for it would take the key.
        self.page.keyboard.press("Escape")

    def complete(self, text, wanted):
        """Types a message key by key, and takes what is offered for its last word."""
        def offered():
            # What offers it may not be there yet, and is asked when something is typed.
            self.clear()
            self.page.keyboard.type(text)
            with contextlib.suppress(Error):
                self.page.locator(SUGGESTED).filter(has_text=wanted).last.wait_for(timeout=3 * SOON)
            return wanted in self.text(SUGGESTED)

        self.until(f"`{wanted}` among what is offered for `{text}`", offered)
        self.page.keyboard.press("Tab")

    def clear(self):
        """Empties the input."""
        self.page.locator(INPUT).last.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.press("Delete")

    def send(self, text, key="Enter"):
        """Types a message and sends it: by Enter (to steer a running turn), or by Alt+Enter (to queue it)."""
        self.write(text)
        self.send_typed(text.split("\n")[-1], key)

    def send_typed(self, last=None, key="Enter"):
        """Sends what is typed, whose last line is this."""
        last = last or self.text(INPUT).replace("\xa0", " ").strip()

        def gone():
            if last not in self.text(INPUT).replace("\xa0", " "):
                return True
            self.page.locator(INPUT).last.click()
            self.page.keyboard.press(key)

        self.until("that the message is sent", gone)

    def press(self, label, within=CHAT):
        """Presses a button by what it says."""
        button = self.page.locator(within).get_by_text(label, exact=True)
        self.until(f"a button `{label}`", lambda: button.count() and button.last.is_visible())
        button.last.click()

    def pick(self, label, open_menu):
        """Picks an entry of a menu that `open_menu` opens.

        It is opened as often as needed, as somebody does to whom this happens: a menu is not filled any further while it
        is open, and is gone when the tool bar that it belongs to is made anew, which the one of terminals is whenever
        there is more that can be started.
        """
        entry = self.page.locator(".context-view").get_by_text(label, exact=True)

        def picked():
            try:
                if not entry.count():
                    self.page.keyboard.press("Escape")
                    open_menu()
                shown = entry.first.element_handle(timeout=SOON)
                shown.evaluate(TO_BE_CLICKED)
            except Error:
                return False
            # It may be gone before the button is let go, and be clicked although that is not seen in time.
            with contextlib.suppress(Error):
                shown.click(timeout=SOON)
            return shown.evaluate(IS_CLICKED)

        self.until(f"`{label}` as what is picked", picked)

    def open_changed(self, file, text):
        """Opens a file of the list of changes as it is, and waits until it shows this text."""
        entry = self.page.locator(".multiDiffEntry:visible").filter(has_text=file)
        entry.locator(".header").hover()
        entry.get_by_label("Open File").click()
        self.shows_texts(".editor-instance .monaco-editor .view-lines", text)

    def restore(self):
        """Goes back to where the last message was not sent yet: files at once, the conversation when another one is sent."""
        self.page.locator(f"{CHAT} .interactive-request").last.hover()
        self.press("Restore Checkpoint")
        self.press("Discard Edits")

    def open_terminal(self):
        """Opens the terminal of the command that runs."""
        button = self.page.locator(CHAT).get_by_label("Show and Focus Terminal")
        self.until("the button that shows the terminal", lambda: button.count() and button.last.is_visible())
        button.last.click()
        self.until("the terminal", lambda: self.there(TERMINAL))

    def new_terminal(self, profile):
        """Opens another terminal, of this profile."""
        rows = self.page.locator(f"{TERMINALS} .monaco-list-row").filter(has_text="Agent Host")
        self.pick(profile, lambda: self.page.locator("[aria-label^='Launch Profile']").first.click(timeout=SOON))
        self.until(f"a terminal of `{profile}`", lambda: rows.count())

    def type_into_terminal(self, text):
        """Types a line into the terminal that is shown."""
        self.page.locator(TERMINAL).last.click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def cancel(self):
        self.running()
        self.page.locator(CANCEL).last.click()

    def answer(self, question, value=None, choices=()):
        """Answers the question that is shown: by text, or by choices."""
        self.until(f"the question `{question}`", lambda: question in self.text(QUESTIONS))
        for choice in choices:
            self.press(choice, QUESTIONS)
        if value is not None:
            self.page.locator(f"{QUESTIONS} input.input, {QUESTIONS} textarea").last.fill(value)

        def over():
            # Where one is chosen of several it goes on by itself, and after the last one there is nothing to go on to.
            following = self.page.locator(f"{QUESTIONS} .chat-question-nav-next:not(.disabled)")
            if question not in self.text(QUESTIONS) or not following.count():
                return True
            with contextlib.suppress(Error):
                following.first.click(timeout=SOON)

        self.until(f"what follows on `{question}`", over)

    def submit(self):
        """Sends the answers."""
        self.page.locator(f"{QUESTIONS} .chat-question-submit-button").last.click()

    def open(self, title):
        """Opens a session of the list."""
        self.lists(title)
        self.page.locator(SESSION).filter(has_text=title).first.click()

    def run(self, title, prompt):
        """Runs a command of the palette, and waits until this is said where it asks; gives back where that is typed."""
        asked = self.page.locator(QUICK_INPUT)
        entry = self.page.locator(".quick-input-list .monaco-list-row.focused").filter(has_text=title)

        def listed():
            # What extensions bring is looked for when the palette is opened, and may not be there yet.
            self.page.keyboard.press("Escape")
            self.page.keyboard.press("F1")
            with contextlib.suppress(Error):
                asked.fill(">" + title, timeout=SOON)
                entry.wait_for(timeout=SOON)
            return entry.count()

        self.until(f"the command `{title}`", listed)
        asked.press("Enter")
        self.asks(prompt)
        return asked

    def asks(self, prompt):
        """Waits until a command asks this."""
        said = lambda: self.text(".quick-input-widget") + (self.page.locator(QUICK_INPUT).get_attribute("placeholder") or "")
        self.until(f"`{prompt}`", lambda: prompt in said())

    def command(self, title, prompt, text):
        """Runs a command of the palette, which asks for a text."""
        asked = self.run(title, prompt)
        asked.fill(text)
        asked.press("Enter")

    def servers(self):
        """What is said of each MCP server of the session: the list stays open, and follows what is changed."""
        self.page.locator(INPUT).last.click()
        self.run("MCP: List Servers", "Select an MCP Server for this session")
        rows = self.page.locator(".quick-input-list .monaco-list-row")
        return lambda: {row.locator(".label-name").first.inner_text(): row.locator(".label-description").first.inner_text()
                        for row in rows.all() if row.locator(".label-description").count()}

    def server(self, name, states, action):
        """Waits until a server of the session has one of these states, and does something with it."""
        seen = {}

        def is_so():
            with contextlib.suppress(Error):
                seen.update(listed())
            return seen.get(name) in states

        listed = self.servers()
        self.until_seen(f"the server `{name}` as one of {states}", is_so, seen)
        rows = self.page.locator(".quick-input-list .monaco-list-row")
        rows.filter(has_text=name).first.click()
        if action:
            chosen = rows.get_by_text(action, exact=True)
            self.until(f"`{action}` for the server", lambda: chosen.count())
            chosen.first.click()
        self.page.keyboard.press("Escape")

    def rename(self, title, to):
        """Names a session of the list otherwise."""
        self.lists(title)
        row = self.page.locator(SESSION).filter(has_text=title).first
        self.pick("Rename...", lambda: row.click(button="right", timeout=SOON))
        name = self.page.locator(QUICK_INPUT)
        self.until("where the name is typed", lambda: name.is_visible() and name.input_value() == title)
        name.fill(to)
        name.press("Enter")
