// As much of the editor's interface as the example extension uses; what it shows is printed.
exports.commands = { registered: {}, registerCommand: (name, run) => { exports.commands.registered[name] = run; return {}; } };
exports.window = {
  createOutputChannel: () => ({ show() {}, append: (text) => process.stdout.write(text), appendLine: (text) => console.log(text) }),
  showErrorMessage: (text) => console.log(`error: ${text}`),
};
exports.workspace = { getConfiguration: () => ({ get: (_, otherwise) => otherwise }) };
