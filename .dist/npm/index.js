'use strict';
// Finds the program, and speaks to it over its stdin and stdout. CommonJS, so that `require` and `import` both work.
const { spawn: spawnProcess } = require('node:child_process');
const { closeSync, existsSync, openSync, readSync } = require('node:fs');
const { optionalDependencies = {}, version } = require('./package.json');

/** Maximum number of characters of stderr that an error of the transport quotes. */
const QUOTED_STDERR_MAX = 2000;

function programPath() {
  const chosen = process.env.AHP_SIDECAR_PATH;
  if (chosen) {
    if (!existsSync(chosen)) throw new Error(`AHP_SIDECAR_PATH names \`${chosen}\`, which does not exist`);
    return chosen;
  }
  const platform = `${process.platform}-${process.arch}`;
  const name = `@ahp-sidecar/${platform}`;
  if (!(name in optionalDependencies)) {
    const known = Object.keys(optionalDependencies).map((other) => other.split('/')[1]).join(', ');
    throw new Error(
      `ahp-sidecar has no program for \`${platform}\`, only for ${known}: ` +
      'build it (`cargo install ahp-sidecar`), and set AHP_SIDECAR_PATH to its path');
  }
  try {
    return require.resolve(`${name}/bin/ahp-sidecar${process.platform === 'win32' ? '.exe' : ''}`);
  } catch {
    throw new Error(
      `the package \`${name}\`, which holds the program, is not installed: optional dependencies were left out, or ` +
      `node_modules comes from another platform. Run \`npm install ${name}@${version}\` here, or set AHP_SIDECAR_PATH`);
  }
}

/** Returns whether a program of Linux is made for another processor than this one. */
function isForeign(path) {
  try {
    const head = Buffer.alloc(20);
    const file = openSync(path);
    readSync(file, head);
    closeSync(file);
    const made = { 62: 'x64', 183: 'arm64' }[head.readUInt16LE(18)];
    return head.toString('latin1', 0, 4) === '\x7fELF' && made !== process.arch;
  } catch {
    return false;
  }
}

function spawn(options = {}) {
  const { args = [], cwd, env, onStderr = (text) => process.stderr.write(text) } = options;
  const path = options.path ?? programPath();
  const why = (error) => {
    const cause = error.code === 'ENOENT' && cwd && !existsSync(cwd) ? `there is no folder \`${cwd}\`` : error.message;
    return new Error(`\`${path}\` cannot be started: ${cause}`, { cause: error });
  };
  let child;
  try {
    child = spawnProcess(path, args, { cwd, env, stdio: ['pipe', 'pipe', 'pipe'], windowsHide: true });
  } catch (error) {
    throw why(error);
  }
  // An error without a listener would end this process.
  const failed = new Promise((resolve) => child.on('error', (error) => resolve({ code: null, signal: null, error })));
  if (!child.stdin || !child.stdout || !child.stderr) throw why(new Error('no pipes can be opened to it'));
  let quoted = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    quoted = (quoted + text).slice(-QUOTED_STDERR_MAX);
    onStderr(text);
  });
  const closed = new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal })));
  const exited = Promise.race([failed, closed]);
  // Why nothing can be sent is told by `recv`, which learns the exit status.
  child.stdin.on('error', () => {});

  // Nothing is read while nobody receives: the host then pauses its agents instead of filling memory.
  const chunks = child.stdout.setEncoding('utf8')[Symbol.asyncIterator]();
  const complete = [];
  let begun = [];
  let pulled = Promise.resolve(true);
  /** Reads once, after the reads that are asked for already; resolves to `false` at the end of the output. */
  const pull = () => (pulled = pulled.then(async (more) => {
    const { value, done } = more ? await chunks.next() : { done: true };
    if (done) return false;
    const [rest, ...lines] = value.split('\n');
    begun.push(rest);
    for (const line of lines) {
      complete.push(begun.join(''));
      begun = [line];
    }
    return true;
  }));
  async function next() {
    while (complete.length === 0) {
      if (!(await pull()) && complete.length === 0) return ended();
    }
    return { kind: 'text', text: complete.shift() };
  }
  async function ended() {
    const { code, signal, error } = await exited;
    if (error) throw why(error);
    // 0: stdin ended; 4: a turn was cut or a question declined after that. Both are what `close` asks for.
    if (child.stdin.writableEnded && (code === 0 || code === 4)) return null;
    // The system's shell is what runs a program that the system cannot run.
    if (isForeign(path)) throw why(new Error(`it is made for another processor than ${process.arch}`));
    const how = signal ? `was ended by ${signal}` : `exited with status ${code}`;
    throw new Error(`ahp-sidecar ${how}${quoted.trim() && `: ${quoted.trim()}`}`);
  }

  let last = Promise.resolve();
  return {
    process: child,
    exited,
    send(message) {
      // Line breaks are white space of JSON: inside of its strings they are escaped.
      const line = (typeof message === 'string' ? message : JSON.stringify(message)).replace(/[\r\n]+/g, ' ');
      return new Promise((resolve, reject) => {
        child.stdin.write(`${line}\n`, (error) => (error ? reject(error) : resolve()));
      });
    },
    recv() {
      // Several that wait get the frames in their order.
      const frame = last.then(next);
      last = frame.catch(() => {});
      return frame;
    },
    async close() {
      child.stdin.end();
      // The last messages wait for `recv`; unread ones would keep the host from its end.
      while (await pull());
      await exited;
    },
  };
}

exports.isForeign = isForeign; // for `ahp-sidecar.js` alone
exports.programPath = programPath;
exports.spawn = spawn;
