// Types of Node are used if `@types/node` is installed, and are `any` otherwise.
// @ts-ignore
import type { ChildProcess, SpawnOptions as NodeSpawnOptions } from 'node:child_process';

/** A message from the host: one line of JSON text. */
export interface TextFrame {
  readonly kind: 'text';
  readonly text: string;
}

/** How the process ended. `error` is present only if it could not be started. */
export interface Exit {
  readonly code: number | null;
  readonly signal: ChildProcess['signalCode'];
  readonly error?: Error;
}

export interface SpawnOptions {
  /** Options of the program, such as `['--ephemeral']`. */
  args?: readonly string[];
  /** The program. Default: `programPath()`. */
  path?: string;
  /** Working directory. Default: the caller's. */
  cwd?: string;
  /** Environment of the program and of its agents. Default: the caller's. */
  env?: NodeSpawnOptions['env'];
  /** Receives the program's log. Default: it goes to stderr. */
  onStderr?: (text: string) => void;
}

/**
 * A running host. It is an `AhpTransport` of the protocol's official TypeScript client: `new AhpClient(spawn())`.
 */
export interface Host {
  readonly process: ChildProcess;
  /** Resolves when the process has ended and its output is complete. Never rejects. */
  readonly exited: Promise<Exit>;
  /** Sends a JSON-RPC message, an object or its JSON text. Resolves when the program's stdin has taken it. */
  send(message: object | string): Promise<void>;
  /**
   * Receives the next message. Resolves to `null` when the host has ended after `close`; rejects, with
   * the reason, when it could not start or has failed.
   */
  recv(): Promise<TextFrame | null>;
  /** Ends stdin, and waits until the host has finished its running turns and has exited. */
  close(): Promise<void>;
}

/**
 * Returns the path of the program of this platform, or what AHP_SIDECAR_PATH names.
 *
 * @throws Error with a sentence that says what to do, if there is none, or if it is for another platform.
 */
export function programPath(): string;

/** Starts a host for this process. It ends when its stdin is closed, and when this process ends. */
export function spawn(options?: SpawnOptions): Host;
