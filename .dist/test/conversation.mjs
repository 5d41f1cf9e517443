// A conversation through `spawn`, as an application with ES modules has it; and how each ending is told.
import assert from 'node:assert/strict';
import { spawn } from 'ahp-sidecar';

const host = spawn({ args: ['--ephemeral'] });
const chat = 'ahp-chat://default/YWhwLXNlc3Npb246L2Np';
const say = (message) => host.send({ jsonrpc: '2.0', ...message });
await say({ id: 1, method: 'initialize', params: { channel: 'ahp-root://', clientId: 'test', protocolVersions: ['1.0.0'] } });
await host.send('{"jsonrpc":"2.0","id":2,\r\n"method":"createSession","params":{"channel":"ahp-session:/ci"}}\n');
await say({ id: 3, method: 'subscribe', params: { channel: chat } });
const turnStarted = (turnId, text) => ({
  method: 'dispatchAction',
  params: {
    channel: chat,
    clientSeq: Number(turnId),
    action: { type: 'chat/turnStarted', turnId, startedAt: new Date().toISOString(), message: { text, origin: { kind: 'user' } } },
  },
});
// U+2028 ends a line for some readers, and ä may be torn between two reads.
const text = 'Hello \u2028 ä'.repeat(10_000);
say(turnStarted('1', text));
let answer = '';
for (let over = false; !over;) {
  const frame = await host.recv();
  assert.equal(frame.kind, 'text');
  const { params } = JSON.parse(frame.text);
  answer += params?.action?.content ?? '';
  over = params?.action?.type === 'chat/turnComplete';
}
assert.ok(answer.includes(text), 'the answer is whole');

// A running turn ends before `close` resolves, although nobody receives meanwhile; its messages can be received then.
say(turnStarted('2', '/stream 20000 100 0'));
await host.close();
assert.deepEqual(await host.exited, { code: 0, signal: null });
let last;
for (let frame; (frame = await host.recv());) last = JSON.parse(frame.text).params.action.type;
assert.equal(last, 'chat/turnComplete');
assert.equal(await host.recv(), null);
await assert.rejects(host.send({}));

const wrong = spawn({ args: ['--no-such-option'], onStderr: () => {} });
await assert.rejects(wrong.recv(), /exited with status 2: .*--no-such-option/s);
const absent = spawn({ path: '/not/there' });
await assert.rejects(absent.recv(), /`\/not\/there` cannot be started/);
await absent.close();
const killed = spawn({ args: ['--ephemeral'] });
killed.process.kill('SIGKILL');
await assert.rejects(killed.recv(), /was ended by SIGKILL/);
console.log(answer.slice(0, 20));
