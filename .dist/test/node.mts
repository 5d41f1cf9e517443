// With `@types/node`, members have the types of Node.
import { spawn, type Exit } from 'ahp-sidecar';

const host = spawn({ env: { ...process.env, NAME: 'value' } });
host.process.on('exit', (code) => code?.toFixed());
const signal: NodeJS.Signals | null = ((await host.exited) satisfies Exit).signal;
// @ts-expect-error: members are not `any`
host.process.nothing;
// @ts-expect-error: values of the environment are texts
spawn({ env: { NAME: 1 } });
export { signal };
