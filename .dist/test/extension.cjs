// Runs the command of an unpacked extension, as the editor does.
const path = require('node:path');
const folder = path.resolve(process.argv[2]);
const extension = require(folder);
const { registered } = require(require.resolve('vscode', { paths: [folder] })).commands;

(async () => {
  extension.activate({ subscriptions: [], asAbsolutePath: (inside) => path.join(folder, inside) });
  await registered['ahpSidecarExample.ask']('Hello');
  await registered['ahpSidecarExample.ask']('Hello again');
  await extension.deactivate();
})();
