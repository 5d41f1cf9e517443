#!/usr/bin/env node
'use strict';
// Runs the program of this platform in place of this script, as far as Node can: same pipes, signals and exit status.
const { spawn } = require('node:child_process');
const { constants } = require('node:os');
const { programPath } = require('./index.js');

try {
  const child = spawn(programPath(), process.argv.slice(2), { stdio: 'inherit', windowsHide: true });
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  // A terminal sends these to both, and a second one would end the host at once instead of in order. A host that got none
  // gets it later.
  for (const signal of ['SIGINT', 'SIGHUP']) process.on(signal, () => setTimeout(() => child.kill(signal), 2500).unref());
  child.on('error', (error) => fail(error));
  child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
} catch (error) {
  fail(error);
}

function fail(error) {
  console.error(`ahp-sidecar: ${error.message}`);
  process.exitCode = 1;
}
