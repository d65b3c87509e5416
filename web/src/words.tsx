// Words that a view uses, for readers who do not know them: docs/reference/glossary.md says more.
import type { View } from "./source";

const WORDS: [word: string, meaning: string, ...views: View[]][] = [
  ["query, key, value", "What a position looks for, what it is found by, and what it passes on.", "attention", "design", "program"],
  ["weight", "How much of a key's value a query takes. Those of one query add up to 1, or to less where a sink takes some.", "attention", "design", "scramble"],
  ["head", "One of the attentions that a layer does side by side. \u201C3.1\u201D is layer 3, head 1; both are counted from 0.", "flow", "attention", "whatif", "patch"],
  ["entropy", "How evenly a head spreads its weights, in bits: 0 with all on one key, 3 with the same on each of eight keys.", "attention"],
  ["induction", "Looking for what followed the same token before, so that a sequence that began again goes on as it did.", "attention"],
  ["masked", "What a query may not read: in a decoder, later tokens.", "attention"],
  ["distance", "How many tokens back or ahead the keys are that a query takes, on average by weight: 1 is the next one.", "attention"],
  ["sink", "What takes weight although little is passed on from it: often the first token, in some models no token at all.", "attention", "whatif"],
  ["margin", "By how much, at least, the best score of a wanted key exceeds that of any other key.", "design"],
  ["bound", "What the error cannot exceed, for any sequence that the certificate covers, rounding included.", "design", "program"],
  ["logit", "The number that a model gives each token, or class, before softmax makes probabilities of them.", "flow", "attention", "sampling", "whatif"],
  ["log-odds", "How many times as likely one token is as another, or as all others together, as a natural logarithm: 0 is as likely, +2.3 ten times, \u22122.3 a tenth.", "whatif", "patch"],
  ["edge", "One token that reads another, in one head.", "whatif"],
  ["residual stream", "The numbers that each position carries from layer to layer. Every head and network adds to them.", "flow", "whatif", "patch", "program"],
  ["MLP", "The feed-forward network of a layer, which changes each position alone. Its neurons are the numbers inside it.", "flow", "whatif"],
  ["lens", "What the model would answer if it stopped after a layer.", "whatif"],
  ["steer", "To add a direction to the residual stream, such as the one that raises a token's logit.", "whatif"],
  ["patch", "To put what a part computed for one text into the run of another.", "patch"],
  ["temperature", "Below 1, likely tokens become likelier still; above 1, less so. At 0 the likeliest is taken.", "sampling"],
  ["top k, top p", "Draw from the k likeliest tokens alone; from the likeliest that together have the probability p.", "sampling"],
  ["expert", "One of several networks of a layer, of which a router chooses a few for each token.", "experts", "whatif"],
  ["selector", "Which keys each query selects; in the transformer, a head.", "program"],
  ["None", "No value at this position.", "program"],
];

export function Words({ view }: { view: View }) {
  return (
    <details class="words">
      <summary>Words</summary>
      <dl>
        {WORDS.filter(([, , ...views]) => views.includes(view)).map(([word, meaning]) => (
          <div key={word}>
            <dt>{word}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
