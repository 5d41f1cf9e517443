// `require` gives the same as `import`, and what was asked for at once comes in order.
const assert = require('node:assert/strict');
const { spawn } = require('ahp-sidecar');

(async () => {
  const host = spawn({ args: ['--ephemeral'] });
  const frames = [host.recv(), host.recv()];
  const params = { channel: 'ahp-root://', clientId: 'Hello', protocolVersions: ['1.0.0'] };
  host.send({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
  host.send({ jsonrpc: '2.0', id: 2, method: 'ping', params: { channel: 'ahp-root://' } });
  const [first, second] = (await Promise.all(frames)).map(({ text }) => JSON.parse(text).id);
  assert.deepEqual([first, second], [1, 2]);
  await host.close();
  console.log(params.clientId);
})();
