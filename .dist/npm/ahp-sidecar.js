#!/usr/bin/env node
'use strict';
// Runs the program of this platform in place of this script, as far as Node can: same pipes, signals and exit status.
const { spawn } = require('node:child_process');
const { constants } = require('node:os');
const { programPath } = require('./index.js');

try {
  const child = spawn(programPath(), process.argv.slice(2), { stdio: 'inherit', windowsHide: true });
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  // A terminal sends these to both, and a second one would end the host at once instead of in order.
  for (const signal of ['SIGINT', 'SIGHUP']) process.on(signal, () => {});
  child.on('error', (error) => fail(error));
  child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
} catch (error) {
  fail(error);
}

function fail(error) {
  console.error(`ahp-sidecar: ${error.message}`);
  process.exitCode = 1;
}
