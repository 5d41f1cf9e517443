// Runs the command of an unpacked extension, as the editor does.
const path = require('node:path');
const folder = path.resolve(process.argv[2]);
const extension = require(folder);
const { registered } = require(require.resolve('vscode', { paths: [folder] })).commands;

(async () => {
  extension.activate({ subscriptions: [], asAbsolutePath: (inside) => path.join(folder, inside) });
  const ask = registered['ahpSidecarExample.ask'];
  await ask('Hello');
  await Promise.all([ask('Hello again'), ask('Hello at once')]);
  await extension.deactivate();
  // A program that ends takes its questions along, those that wait as well: at the first request, and in a turn.
  for (const program of ['/bin/false', path.resolve(process.argv[3])]) {
    extension.activate({ subscriptions: [], asAbsolutePath: () => program });
    const again = registered['ahpSidecarExample.ask'];
    await Promise.all([again('Who ends?'), again('Who waits?')]);
  }
})();
