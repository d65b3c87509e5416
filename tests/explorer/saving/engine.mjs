// Answers requests in Node with the engine of the built page: JSON from standard input to standard output.
import { readFileSync } from "node:fs";

const { Engine } = await import(process.argv[2]);
const answered = [];
for (const { model, asks } of JSON.parse(readFileSync(0, "utf8"))) {
  const answers = [];
  try {
    const engine = new Engine(model);
    for (const [call, asked] of asks) {
      const answer = engine.answer(call, asked, async () => {});
      answers.push(await answer.then((found) => (found instanceof Float32Array ? [...found] : found), ({ refusal }) => ({ refusal })));
    }
  } catch (error) {
    if (!error.refusal) throw error;
    answers.push({ refusal: error.refusal });
  }
  answered.push(answers);
}
console.log(JSON.stringify(answered));
