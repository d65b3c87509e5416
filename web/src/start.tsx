// What the page shows before a model is chosen: tours, questions with a picture each, and all models.
import type { ComponentChildren } from "preact";
import { GROUPS, isLanguageModel } from "./header";
import type { ModelCard } from "./source";
import { START, startOf, startOfStep, toHash, type Address } from "./state";
import { tours } from "./tours";
import "./start.css";

interface Question {
  title: string;
  about: string;
  state: Partial<Address> & { model: string };
  picture: () => preact.JSX.Element;
}

const QUESTIONS: Question[] = [
  {
    title: "Which letter comes next?",
    about: "A model of two layers goes on with what it has read. See what each letter reads, and remove a head.",
    state: { model: "induction", view: "attention", layer: 1, head: 1, shape: "lines", pin: 17 },
    picture: Letters,
  },
  {
    title: "Does order matter?",
    about: "Put the facts into another order. This model answers the same in every order, except for rounding.",
    state: { model: "lookup-facts", view: "scramble" },
    picture: Order,
  },
  {
    title: "A head you can edit",
    about: "Weights chosen by hand, and a proof that they are right. Change a number until it breaks.",
    state: { model: "identity", view: "design" },
    picture: Weights,
  },
  {
    title: "A program as weights",
    about: "A few lines of code, compiled into a transformer. Type a text and follow every value through it.",
    state: { model: "program-sort", view: "program" },
    picture: Program,
  },
];

interface StartProps {
  models: ModelCard[];
  within: "window" | "notebook" | "file";
}

const PYTHON = `import glassformer as gf
model = gf.load("my/model")
gf.explore(model, "Some text").serve()`;

export function StartPage({ models, within }: StartProps) {
  const has = (name: string) => models.some((model) => model.name === name);
  const languageModels = models.filter(isLanguageModel);
  return (
    <main class="start">
      <p class="about">Look inside transformers, and change them: what they read, what each part does, and what happens without it.</p>
      {languageModels.length > 0 && (
        <section aria-label="Language models">
          <h2>Language models</h2>
          <div class="cards">
            {languageModels.map((card) => (
              <Card href={toHash({ ...START, ...startOf(card) })}>
                <h3>{card.title}</h3>
                <p>{card.about}</p>
                <p class="quiet">{card.input_help}</p>
              </Card>
            ))}
          </div>
        </section>
      )}
      <div class="cards">
        {tours.map(({ name, title, about, needs, steps }) => {
          const there = steps.every(({ state }) => has(state.model ?? ""));
          if (!there && !needs) return null;
          const text = (
            <>
              <h2>{`Tour: ${title}`}</h2>
              <p>{about}</p>
              <p class="quiet">{there ? `${steps.length} steps, each one thing to do` : <>Start <code>{needs}</code></>}</p>
            </>
          );
          const begin = startOfStep(name, 1);
          return there && begin ? <Card href={toHash(begin)} main>{text}</Card> : <div class="card">{text}</div>;
        })}
      </div>
      <div class="cards">
        {QUESTIONS.filter(({ state }) => has(state.model)).map(({ title, about, state, picture: Picture }) => (
          <Card href={toHash({ ...START, ...state })}>
            <svg viewBox="0 0 160 72" aria-hidden="true">
              <Picture />
            </svg>
            <h2>{title}</h2>
            <p>{about}</p>
          </Card>
        ))}
        <div class="card own">
          <div>
            <h2>Your own model</h2>
            <p>A directory of a Hugging Face model, a GGUF file or a run, from the terminal or from Python.</p>
          </div>
          <pre tabIndex={0} aria-label="How to open a model of your own">{`${within === "file" ? "pip install 'glassformer[explore]'\n" : ""}glassformer explore my/model\n\n${PYTHON}`}</pre>
        </div>
      </div>
      <Exercises models={models} />
      <section aria-label="All models">
        <h2>{`All ${models.length} models`}</h2>
        {GROUPS.map(([title, holds]) => {
          const group = models.filter(holds);
          return (
            group.length > 0 && holds !== isLanguageModel && (
              <div class="group">
                <h3>{title}</h3>
                <ul>
                  {group.map((card) => (
                    <li>
                      <a href={toHash({ ...START, ...startOf(card) })} title={card.about}>
                        {card.title}
                      </a>
                    </li>
                  ))}
                </ul>
              </div>
            )
          );
        })}
      </section>
    </main>
  );
}

/** Heads and programs to be made by the reader; the address holds what was typed. */
function Exercises({ models }: Pick<StartProps, "models">) {
  const tasks = models.filter(({ kind, origin, blank }) => origin === "shipped" && (kind === "head" || blank !== ""));
  if (tasks.length === 0) return null;
  return (
    <section aria-label="Exercises">
      <h2>Exercises</h2>
      <p>
        A task and a head of zeros, or a program with a blank: type until it is proved right for every sequence. The
        link holds your answer.
      </p>
      <ul>
        {tasks.map((card) => (
          <li>
            <a href={toHash({ ...START, ...startOf(card), exercise: true })} title={card.input_help}>
              {card.title}
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Card({ href, main, children }: { href: string; main?: boolean; children: ComponentChildren }) {
  return (
    <a class="card" data-main={main} href={href}>
      {children}
    </a>
  );
}

function Letters() {
  return (
    <>
      {[..."GLASSFORGLASSF"].map((letter, at) => (
        <text x={8 + 11 * at} y={62} class={at === 6 || at === 13 ? "lit" : ""}>
          {letter}
        </text>
      ))}
      <path d="M151 48C151 8 74 8 74 48" />
      <path class="faint" d="M151 48C151 30 140 30 140 48M151 48C151 -8 8 -8 8 48" />
    </>
  );
}

function Order() {
  return (
    <>
      {["ada=17", "emma=42", "leo=8"].map((fact, at) => (
        <>
          <rect x={4} y={4 + 22 * at} width={56} height={19} rx={4} class={at === 1 ? "lit" : ""} />
          <text x={32} y={18 + 22 * at}>{fact}</text>
          <rect x={100} y={4 + 22 * ((at + 1) % 3)} width={56} height={19} rx={4} class={at === 1 ? "lit" : ""} />
          <text x={128} y={18 + 22 * ((at + 1) % 3)}>{fact}</text>
          <path class={at === 1 ? "" : "faint"} d={`M62 ${13.5 + 22 * at}L98 ${13.5 + 22 * ((at + 1) % 3)}`} />
        </>
      ))}
    </>
  );
}

function Weights() {
  return (
    <>
      {Array.from({ length: 9 }, (_, at) => {
        const [row, column] = [Math.floor(at / 3), at % 3];
        return (
          <>
            <rect x={26 + 37 * column} y={4 + 22 * row} width={34} height={19} rx={3} class={at === 0 ? "lit" : ""} />
            <text x={43 + 37 * column} y={18 + 22 * row}>{at === 0 ? "10" : row === column ? "41.6" : "0"}</text>
          </>
        );
      })}
    </>
  );
}

function Program() {
  return (
    <>
      <path d="M44 22L66 22M44 50L66 50M94 22L116 34M94 50L116 38" />
      {["tokens", "index"].map((name, at) => (
        <>
          <rect x={4} y={12 + 28 * at} width={40} height={19} rx={9} />
          <text x={24} y={26 + 28 * at}>{name}</text>
        </>
      ))}
      {["<", "sum"].map((name, at) => (
        <>
          <rect x={66} y={12 + 28 * at} width={28} height={19} rx={9} />
          <text x={80} y={26 + 28 * at}>{name}</text>
        </>
      ))}
      <rect x={116} y={27} width={40} height={19} rx={9} class="lit" />
      <text x={136} y={41}>sorted</text>
    </>
  );
}
