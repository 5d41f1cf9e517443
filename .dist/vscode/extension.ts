// An extension that carries the program: the command "Ask an agent" sends a message and shows the answer.
import * as vscode from 'vscode';
import { spawn, type Host } from 'ahp-sidecar';

interface Action {
  type: string;
  content?: string;
  part?: { kind: string; content?: string; error?: { message: string } };
  turnId?: string;
  toolCallId?: string;
  confirmed?: string;
  request?: { id: string };
}
interface Message {
  id?: number;
  result?: unknown;
  error?: { message: string };
  method?: string;
  params?: { channel: string; action: Action; rejectionReason?: string };
}
interface Pending {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/** A session with one chat, on a host of its own. Extensions with more than that use the protocol's official client. */
class Conversation {
  private readonly session = `ahp-session:/${crypto.randomUUID()}`;
  private readonly chat = `ahp-chat://default/${Buffer.from(this.session).toString('base64url')}`;
  private readonly pending = new Map<number, Pending>();
  private readonly opened: Promise<void>;
  private ids = 0;
  private clientSeq = 0;
  private turn?: Pending;
  private last: Promise<unknown> = Promise.resolve();
  private ended?: Error;

  constructor(
    private readonly host: Host,
    private readonly starts: (question: string) => void,
    private readonly show: (text: string) => void,
  ) {
    void this.receive();
    this.opened = this.open();
    this.opened.catch(() => {}); // `ask` tells
  }

  /** Sends a message after the turns that were asked for earlier, and resolves when its turn is over. */
  ask(text: string): Promise<void> {
    const done = this.last.then(() => this.takeTurn(text));
    this.last = done.catch(() => {}); // its caller tells
    return done;
  }

  private async takeTurn(text: string): Promise<void> {
    await this.opened;
    if (this.ended) throw this.ended;
    this.starts(text);
    const done = new Promise((resolve, reject) => { this.turn = { resolve, reject }; });
    const message = { text, origin: { kind: 'user' } };
    const turnId = crypto.randomUUID();
    this.dispatch({ type: 'chat/turnStarted', turnId, startedAt: new Date().toISOString(), message });
    await done;
  }

  private async open(): Promise<void> {
    const clientId = `vscode-${crypto.randomUUID()}`;
    await this.request('initialize', { channel: 'ahp-root://', clientId, protocolVersions: ['1.0.0'] });
    const workingDirectories = vscode.workspace.workspaceFolders?.map((folder) => folder.uri.toString());
    await this.request('createSession', { channel: this.session, workingDirectories });
    await this.request('subscribe', { channel: this.chat });
  }

  private request(method: string, params: object): Promise<unknown> {
    const id = ++this.ids;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      this.send({ id, method, params });
    });
  }

  private dispatch(action: object): void {
    this.send({ method: 'dispatchAction', params: { channel: this.chat, clientSeq: ++this.clientSeq, action } });
  }

  private send(message: object): void {
    this.host.send({ jsonrpc: '2.0', ...message }).catch(() => {}); // `receive` learns why
  }

  private async receive(): Promise<void> {
    try {
      for (let frame; (frame = await this.host.recv());) this.take(JSON.parse(frame.text));
      this.fail(new Error('ahp-sidecar has ended'));
    } catch (error) {
      this.fail(error as Error);
    }
  }

  private take({ id, result, error, method, params }: Message): void {
    const pending = id === undefined ? undefined : this.pending.get(id);
    if (pending) {
      this.pending.delete(id!);
      return error ? pending.reject(new Error(error.message)) : pending.resolve(result);
    }
    if (method !== 'action' || params?.channel !== this.chat) return;
    const { action, rejectionReason } = params;
    if (rejectionReason) return this.turn?.reject(new Error(rejectionReason));
    switch (action.type) {
      case 'chat/responsePart': return this.show(action.part?.kind === 'markdown' ? action.part.content ?? '' : '');
      case 'chat/delta': return this.show(action.content ?? '');
      case 'chat/toolCallReady': // an extension asks its user here; this one denies what needs a permission
        if (!action.confirmed) {
          const { turnId, toolCallId } = action;
          this.dispatch({ type: 'chat/toolCallConfirmed', turnId, toolCallId, approved: false, reason: 'denied' });
        }
        return;
      case 'chat/inputRequested':
        return this.dispatch({ type: 'chat/inputCompleted', requestId: action.request?.id, response: 'cancel' });
      case 'chat/error': return this.turn?.reject(new Error(action.part?.error?.message ?? 'the turn failed'));
      case 'chat/turnCancelled': return this.turn?.reject(new Error('the turn was cancelled'));
      case 'chat/turnComplete': return this.turn?.resolve(undefined);
    }
  }

  private fail(error: Error): void {
    this.ended = error;
    for (const { reject } of [...this.pending.values(), ...(this.turn ? [this.turn] : [])]) reject(error);
    this.pending.clear();
  }
}

let host: Host | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const output = vscode.window.createOutputChannel('AHP Sidecar Example');
  let conversation: Conversation | undefined;
  const ask = async (given?: string): Promise<void> => {
    const text = given ?? (await vscode.window.showInputBox({ prompt: 'Message to the agent' }));
    if (!text) return;
    output.show(true);
    if (!conversation) {
      const program = `bin/ahp-sidecar${process.platform === 'win32' ? '.exe' : ''}`;
      const options = vscode.workspace.getConfiguration('ahpSidecarExample').get<string[]>('options', []);
      const log = (line: string): void => output.append(line);
      host = spawn({ path: context.asAbsolutePath(program), args: ['--ephemeral', ...options], onStderr: log });
      void host.exited.then(() => { conversation = undefined; });
      conversation = new Conversation(
        host, (question) => output.appendLine(`> ${question}`), (words) => output.append(words));
    }
    try {
      await conversation.ask(text);
      output.appendLine('');
    } catch (error) {
      output.appendLine(`\n${(error as Error).message}`);
      void vscode.window.showErrorMessage(`AHP Sidecar Example: ${(error as Error).message}`);
    }
  };
  context.subscriptions.push(output, vscode.commands.registerCommand('ahpSidecarExample.ask', ask));
}

/** Closes the host's stdin: it ends by itself, and with the extension host at the latest. */
export async function deactivate(): Promise<void> {
  await host?.close();
}
