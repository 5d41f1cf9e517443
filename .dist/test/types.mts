// What a TypeScript program may rely on. `AhpTransport` is the interface of the protocol's official client, as far as a
// transport must have it.
import { programPath, spawn, type Exit, type Host, type SpawnOptions } from 'ahp-sidecar';

type JsonRpcMessage = { readonly jsonrpc: '2.0'; readonly method?: string; readonly id?: number };
type TransportFrame =
  | { readonly kind: 'parsed'; readonly message: JsonRpcMessage }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'binary'; readonly data: Uint8Array };
interface AhpTransport {
  send(message: JsonRpcMessage | string): Promise<void> | void;
  recv(): Promise<TransportFrame | null>;
  close(): Promise<void> | void;
}

const options: SpawnOptions = { args: ['--ephemeral'], path: programPath(), onStderr: (text) => text.length };
const host: Host = spawn(options);
const transport: AhpTransport = host;
const exit: Exit = await host.exited;
const code: number | null = exit.code;
// @ts-expect-error: options are checked
spawn({ arguments: [] });
// @ts-expect-error: there is no such member
host.nothing;
export { code, transport };
