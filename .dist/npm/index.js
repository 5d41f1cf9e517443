'use strict';
// Finds the program, and speaks to it over its stdin and stdout. CommonJS, so that `require` and `import` both work.
const { spawn: spawnProcess } = require('node:child_process');
const { closeSync, existsSync, openSync, readSync } = require('node:fs');
const os = require('node:os');
const { optionalDependencies = {}, version } = require('./package.json');

/** Maximum number of characters of stderr that an error of the transport quotes. */
const QUOTED_STDERR_MAX = 2000;

/** Names of processors by their numbers in ELF, Mach-O and PE files, and as `uname` tells them. */
const PROCESSORS = {
  0x3e: 'x64', 0xb7: 'arm64', 0x1000007: 'x64', 0x100000c: 'arm64', 0x8664: 'x64', 0xaa64: 'arm64',
  x86_64: 'x64', i686: 'x64', aarch64: 'arm64', armv8l: 'arm64',
};

/** Returns the platform that a program is compiled for, by its header; `undefined` for a script, or if unknown. */
function platformOf(path) {
  const head = Buffer.alloc(1024);
  try {
    const file = openSync(path, 'r');
    try { readSync(file, head, 0, head.length, 0); } finally { closeSync(file); }
  } catch {
    return undefined; // starting the program tells why
  }
  const at = head.readUInt32LE(0x3c);
  const [name, processor] =
    head.toString('latin1', 0, 4) === '\x7fELF' ? ['linux', head.readUInt16LE(18)]
    : head.readUInt32LE(0) === 0xfeedfacf ? ['darwin', head.readUInt32LE(4)]
    : head.toString('latin1', 0, 2) === 'MZ' && at < 1000 ? ['win32', head.readUInt16LE(at + 4)]
    : [];
  return processor in PROCESSORS ? { name, cpu: PROCESSORS[processor] } : undefined;
}

/**
 * Returns the path of a program that this machine can start. Node would give one of a foreign processor to a shell, which
 * runs its bytes as a script. macOS and Windows run other processors' programs, or refuse them themselves.
 */
function runnable(path) {
  const built = process.platform === 'win32' ? undefined : platformOf(path);
  // A Node of 32 bits can start programs of 64 bits.
  const machine = os.machine?.();
  const cpu = PROCESSORS[machine] ?? machine ?? process.arch;
  if (!built || (built.name === process.platform && (built.cpu === cpu || built.name === 'darwin'))) return path;
  const own = `${process.platform}-${cpu}`;
  throw new Error(
    `\`${path}\` is a program for \`${built.name}-${built.cpu}\`, and this is \`${own}\`, whose program is in the ` +
    `package \`@ahp-sidecar/${own}\`: run \`npm install @ahp-sidecar/${own}@${version}\`, or set AHP_SIDECAR_PATH to it`);
}

function programPath() {
  const chosen = process.env.AHP_SIDECAR_PATH;
  if (chosen) {
    if (!existsSync(chosen)) throw new Error(`AHP_SIDECAR_PATH names \`${chosen}\`, which does not exist`);
    return runnable(chosen);
  }
  const platform = `${process.platform}-${process.arch}`;
  const name = `@ahp-sidecar/${platform}`;
  if (!(name in optionalDependencies)) {
    const known = Object.keys(optionalDependencies).map((other) => other.split('/')[1]).join(', ');
    throw new Error(
      `ahp-sidecar has no program for \`${platform}\`, only for ${known}: ` +
      'build it (`cargo install ahp-sidecar`), and set AHP_SIDECAR_PATH to its path');
  }
  let found;
  try {
    found = require.resolve(`${name}/bin/ahp-sidecar${process.platform === 'win32' ? '.exe' : ''}`);
  } catch {
    throw new Error(
      `the package \`${name}\`, which holds the program, is not installed: optional dependencies were left out, or ` +
      `node_modules comes from another platform. Run \`npm install ${name}@${version}\` here, or set AHP_SIDECAR_PATH`);
  }
  return runnable(found);
}

function spawn(options = {}) {
  const { args = [], cwd, env, onStderr = (text) => process.stderr.write(text) } = options;
  const path = options.path === undefined ? programPath() : runnable(options.path);
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

exports.programPath = programPath;
exports.spawn = spawn;
