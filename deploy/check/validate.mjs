// Holds rendered objects, one line of JSON each on standard input, against the schemas of Kubernetes and of KEDA:
// required fields, types and permitted words. render.py has refused unknown fields before.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

// The packages lie beside package.json in the cache, whose folder is the first argument.
const require = createRequire(`${process.argv[2]}/package.json`);

const schemasOf = (apiVersion) =>
  apiVersion.startsWith('keda.sh/')
    ? require(`@kubernetes-models/keda/${apiVersion}`)
    : require(`kubernetes-models/${apiVersion}`);

let [count, wrong] = [0, 0];
for await (const line of createInterface({ input: process.stdin })) {
  const { apiVersion, kind, ...rest } = JSON.parse(line);
  count += 1;
  try {
    const Model = schemasOf(apiVersion)[kind];
    if (!Model) throw new Error('there is no such kind');
    new Model(rest).validate();
  } catch (error) {
    wrong += 1;
    console.error(`${apiVersion} ${kind} ${rest.metadata?.name}: ${error.message}`);
  }
}
if (count < 20) {
  console.error(`only ${count} objects were rendered`);
  process.exit(1);
}
console.log(`${count} objects, ${wrong} wrong`);
process.exit(wrong ? 1 : 0);
