// Answers requests in Node with the engine of the built page: JSON from standard input to standard output.
import { readFileSync } from "node:fs";

const { Engine } = await import(process.argv[2]);
const answered = [];
for (const { model, asks } of JSON.parse(readFileSync(0, "utf8"))) {
  const answers = [];
  // The engine's names of runs, by those of the requests.
  const runs = new Map();
  try {
    const engine = new Engine(model);
    for (const [call, asked, run] of asks) {
      if ("run" in asked) asked.run = runs.get(asked.run);
      const answer = engine.answer(call, asked, async () => {});
      answers.push(await answer.then((found) => (found instanceof Float32Array ? [...found] : found), ({ refusal }) => ({ refusal })));
      if (call === "run") runs.set(run, answers.at(-1).run);
    }
  } catch (error) {
    if (!error.refusal) throw error;
    answers.push({ refusal: error.refusal });
  }
  answered.push(answers);
}
console.log(JSON.stringify(answered));
