// Runs a GGUF file in llama.cpp: node llama_cpp.mjs MODEL.gguf TASKS.json > RESULTS.json
//
// TASKS: { "tokenize": [text...],        plain text: control tokens typed in it are text, no tokens are added
//          "sequences": [[id...]...],    fed unchanged, one id after the other
//          "choose": [[id...]...],       fed one by one, including begin-of-text; the chosen tokens are not fed
//          "generate": [{"prompt": [id...], "tokens": n}...],
//          "all_logits": bool, "detokenize": bool, "threads": n }
// RESULTS: { "bos": id, "eos": id, "add_bos": bool,
//            "tokens": [[id...]...],
//            "sequences": [[{ "top": [[id, logit], [id, logit]],    the two best after this position
//                             "next": ln of the probability of the sequence's next id (null at its end),
//                             "logits": [V numbers] if all_logits }...]...],
//            "chosen": [[id...]...],      at temperature 0 after each position
//            "generated": [[id...]...],   always the most likely next id
//            "texts": [text...] of what was generated, if detokenize }
import {readFileSync, writeSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const [modelPath, tasksPath] = process.argv.slice(2);
const tasks = JSON.parse(readFileSync(tasksPath, "utf8"));
const sequences = tasks.sequences ?? [];
const choices = tasks.choose ?? [];
const prompts = tasks.generate ?? [];

// Temperature 0 takes the most likely token; no other sampling option is on.
const plain = {temperature: 0, topK: 0, topP: 1, minP: 0, repeatPenalty: undefined};

function logSumExp(logits) {
    const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    return largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0));
}

async function forced(sequence, ids) {
    await sequence.clearHistory();
    const wanted = {generateNext: {token: false, logits: true, options: plain}};
    const outputs = await sequence.controlledEvaluate(ids.map((id) => [id, wanted]));
    return outputs.map(({next}, t) => {
        const best = [...next.logits.entries()].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
        const all = new Array(best.length);
        for (const [id, logit] of best) all[id] = logit;
        return {
            top: best.slice(0, 2),
            next: t + 1 < ids.length ? all[ids[t + 1]] - logSumExp(all) : null,
            ...(tasks.all_logits ? {logits: all} : {})
        };
    });
}

// Like a program that generates: one call per position.
async function chosen(sequence, ids) {
    await sequence.clearHistory();
    const tokens = [];
    for (const [t, id] of ids.entries()) {
        if (sequence.nextTokenIndex !== t) throw new Error(`${sequence.nextTokenIndex} tokens were fed, not ${t}`);
        for await (const token of sequence.evaluate([id], {...plain, yieldEogToken: true})) {
            tokens.push(token);
            break;
        }
    }
    return tokens;
}

async function generated(sequence, prompt, count) {
    await sequence.clearHistory();
    const ids = [];
    for await (const id of sequence.evaluate(prompt, {...plain, yieldEogToken: true})) {
        ids.push(id);
        if (ids.length === count) break;
    }
    return ids;
}

// Messages of the library go to standard error: standard output contains only the results.
console.log = console.info = console.warn = console.error;
const llama = await getLlama({build: "never", gpu: false, logLevel: "warn", progressLogs: false});
const model = await llama.loadModel({modelPath});
const results = {
    bos: model.tokens.bos,
    eos: model.tokens.eos,
    add_bos: model.tokens.shouldPrependBosToken,
    tokens: (tasks.tokenize ?? []).map((text) => [...model.tokenize(text, false)]),
    sequences: [],
    chosen: [],
    generated: []
};
const lengths = [...sequences, ...choices].map((ids) => ids.length);
const longest = Math.max(0, ...lengths, ...prompts.map((p) => p.prompt.length + p.tokens));
if (longest > 0) {
    const context = await model.createContext({
        contextSize: Math.max(64, longest + 8),
        sequences: 1,
        flashAttention: false,
        // llama.cpp's threads spin while they wait, which is slow while other tests run.
        threads: tasks.threads ?? 1
    });
    const sequence = context.getSequence();
    for (const ids of sequences) results.sequences.push(await forced(sequence, ids));
    for (const ids of choices) results.chosen.push(await chosen(sequence, ids));
    for (const {prompt, tokens} of prompts) results.generated.push(await generated(sequence, prompt, tokens));
}
if (tasks.detokenize) {
    // Together with the prompt, because the first space of a text is dropped.
    results.texts = results.generated.map((ids, n) => model.detokenize(ids, false, prompts[n].prompt));
}
// Written synchronously and completely: a pipe takes long output in parts.
const bytes = Buffer.from(JSON.stringify(results));
for (let written = 0; written < bytes.length;) {
    try {
        written += writeSync(1, bytes, written);
    } catch (error) {
        if (error.code !== "EAGAIN") throw error;
    }
}
process.exit(0);
