// Runs a function that everygrad.io.export_web wrote, on the browser's WebGPU.
//
//   import {load} from "./everygrad.js";
//   const model = await load(".");                       // the folder of model.json
//   const [out] = await model.run([new Float32Array(64)]);
//
// One array in for each of model.inputs, one out for each of model.outputs, in C order.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, float32: Float32Array,
  int64: BigInt64Array, uint64: BigUint64Array,
};
const SLOT = 256; // bytes between uniforms: the alignment any device accepts

/** The model in a folder, ready to run. Throws an Error that says what is missing. */
export async function load(url = ".", device = null) {
  const here = globalThis.document?.baseURI ?? location.href; // in a worker too
  const base = new URL(url.endsWith("/") ? url : url + "/", here);
  const [plan, kernels, weights] = await Promise.all([
    fetched(base, "model.json").then((r) => r.json()),
    fetched(base, "kernels.wgsl").then((r) => r.text()),
    fetched(base, "weights.safetensors").then((r) => r.arrayBuffer()),
  ]);
  if (plan.format !== "everygrad-web" || plan.version !== 1) {
    throw new Error("model.json was written by another version of everygrad: export it again");
  }
  const model = new Model(plan, device ?? (await openDevice()));
  await model.checked("loading", async () => {
    await model.build(split(kernels, plan.kernels.length));
    model.fill(weights);
  });
  return model;
}

async function fetched(base, name) {
  const answer = await fetch(new URL(name, base));
  if (!answer.ok) throw new Error(`${name}: the server answered ${answer.status}`);
  return answer;
}

async function openDevice() {
  if (!navigator.gpu) {
    throw new Error(
      "this browser offers no WebGPU here; it needs a recent Chrome, Edge, Safari or Firefox, " +
        "and a page from https:// or localhost"
    );
  }
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("WebGPU found no graphics adapter");
  return adapter.requestDevice();
}

/** The kernels of kernels.wgsl, each under a line "//// number name". */
function split(text, count) {
  const parts = text.split(/^\/\/\/\/ \d+ .*$/m).slice(1);
  if (parts.length !== count) throw new Error("kernels.wgsl does not belong to model.json");
  return parts;
}

export function sizeOf(shape) {
  return shape.reduce((a, b) => a * b, 1);
}

class Model {
  constructor(plan, device) {
    this.plan = plan;
    this.name = plan.name;
    this.inputs = plan.inputs;
    this.outputs = plan.outputs;
    this.device = device;
    this.lost = null;
    this.waiting = Promise.resolve(); // runs share buffers: one after the other
    this.proven = false; // the first run is checked for errors
    device.lost.then((why) => (this.lost = why.message || why.reason));
  }

  // --- loading ---------------------------------------------------------------------------------

  async build(sources) {
    const {device, plan} = this;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.buffers = plan.buffers.map((size) => device.createBuffer({size, usage}));
    this.layouts = new Map();
    const making = plan.kernels.map((k, i) => this.pipeline(k, sources[i]));
    this.pipelines = await Promise.all(making);
    this.uniforms = this.uniformBuffer();
    this.commands = plan.commands.map((c, i) => this.prepared(c, i));
    this.reads = this.readPlan();
  }

  /** What is read, what is written, then the uniform: said outright, as in Python. */
  layout({inputs, outputs}) {
    const key = `${inputs} ${outputs}`;
    if (!this.layouts.has(key)) {
      const kinds = [
        ...Array(inputs).fill("read-only-storage"), ...Array(outputs).fill("storage"), "uniform",
      ];
      const entries = kinds.map((type, binding) => ({
        binding, visibility: GPUShaderStage.COMPUTE, buffer: {type},
      }));
      this.layouts.set(key, this.device.createBindGroupLayout({entries}));
    }
    return this.layouts.get(key);
  }

  async pipeline(kernel, code) {
    const module = this.device.createShaderModule({code, label: kernel.name});
    const {messages} = await module.getCompilationInfo();
    const wrong = messages.filter((m) => m.type === "error");
    if (wrong.length) {
      const said = wrong.map((m) => `line ${m.lineNum}: ${m.message}`).join("\n");
      throw new Error(`the kernel ${kernel.name} does not compile:\n${said}`);
    }
    const layout = this.device.createPipelineLayout({bindGroupLayouts: [this.layout(kernel)]});
    const compute = {module, entryPoint: "main"};
    return this.device.createComputePipelineAsync({layout, compute, label: kernel.name});
  }

  /** The words of every command in one buffer; they never change. */
  uniformBuffer() {
    this.starts = [];
    let size = 0;
    for (const c of this.plan.commands) {
      this.starts.push(size);
      size += Math.ceil((4 * (c.uniform ?? []).length) / SLOT) * SLOT;
    }
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const buffer = this.device.createBuffer({size: Math.max(size, SLOT), usage});
    const words = new Uint32Array(size / 4);
    this.plan.commands.forEach((c, i) => words.set(c.uniform ?? [], this.starts[i] / 4));
    this.device.queue.writeBuffer(buffer, 0, words);
    return buffer;
  }

  prepared(command, i) {
    if (command.copy) return command;
    const entries = command.buffers.map((b, binding) => ({
      binding, resource: {buffer: this.buffers[b]},
    }));
    const place = {buffer: this.uniforms, offset: this.starts[i], size: 4 * command.uniform.length};
    entries.push({binding: entries.length, resource: place});
    const layout = this.layout(this.plan.kernels[command.kernel]);
    const group = this.device.createBindGroup({layout, entries});
    return {pipeline: this.pipelines[command.kernel], group, groups: command.groups};
  }

  /** Which bytes of which buffer to read for each output, and where they go while mapped. */
  readPlan() {
    const reads = [];
    let at = 0;
    const add = (buffer, start, end) => {
      reads.push({buffer: this.buffers[buffer], start, at, size: end - start});
      at += end - start;
    };
    for (const {shape, strides, offset, dtype, buffer} of this.outputs) {
      if (buffer === null) {
        reads.push(null);
        continue;
      }
      let low = offset;
      let high = offset;
      shape.forEach((n, k) => {
        if (strides[k] < 0) low += (n - 1) * strides[k];
        else high += (n - 1) * strides[k];
      });
      const bytes = ARRAYS[dtype].BYTES_PER_ELEMENT; // whole words, whole elements: multiples of 8
      add(buffer, Math.floor((low * bytes) / 8) * 8, Math.ceil(((high + 1) * bytes) / 8) * 8);
    }
    if (this.plan.checks) add(this.plan.checks.buffer, 0, 16);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.staging = this.device.createBuffer({size: Math.max(at, 16), usage});
    return reads;
  }

  /** Weights from a safetensors file: a header's length, the header, the bytes. */
  fill(file) {
    const length = Number(new DataView(file).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
    for (const {name, buffer} of this.plan.weights) {
      if (!header[name]) throw new Error(`weights.safetensors has no ${name}: export it again`);
      const [start, end] = header[name].data_offsets;
      this.send(this.buffers[buffer], new Uint8Array(file, 8 + length + start, end - start));
    }
  }

  /** Bytes to the start of a buffer, up to whole words. */
  send(buffer, bytes) {
    if (bytes.length % 4) {
      const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
      padded.set(bytes);
      bytes = padded;
    }
    this.device.queue.writeBuffer(buffer, 0, bytes);
  }

  // --- running ---------------------------------------------------------------------------------

  /** The outputs for these inputs, as typed arrays in C order. */
  async run(inputs) {
    const given = this.given(inputs); // copies: the caller may change its arrays meanwhile
    const result = this.waiting.then(() => this.runNow(given));
    this.waiting = result.catch(() => {});
    return result;
  }

  given(inputs) {
    if (inputs.length !== this.inputs.length) {
      throw new Error(`${this.name} takes ${this.inputs.length} inputs, got ${inputs.length}`);
    }
    return this.inputs.map(({name, shape, dtype}, i) => {
      const kind = ARRAYS[dtype];
      const size = sizeOf(shape);
      if (inputs[i].length !== size) {
        throw new Error(
          `${name} is ${dtype}[${shape}], ${size} elements; got ${inputs[i].length}`
        );
      }
      if (dtype === "bool") return Uint8Array.from(inputs[i], (x) => (x ? 1 : 0));
      return dtype.endsWith("64") ? kind.from(inputs[i], BigInt) : kind.from(inputs[i]);
    });
  }

  async runNow(given) {
    if (this.lost !== null) throw new Error(`the GPU was lost (${this.lost}); load the page again`);
    if (this.proven) return this.compute(given);
    const out = await this.checked("running", () => this.compute(given));
    this.proven = true;
    return out;
  }

  async compute(given) {
    const {queue} = this.device;
    given.forEach((array, i) => {
      const {buffer} = this.inputs[i];
      if (buffer !== null) this.send(this.buffers[buffer], new Uint8Array(array.buffer));
    });
    const {checks} = this.plan;
    if (checks) queue.writeBuffer(this.buffers[checks.buffer], 0, new Uint32Array(4));
    queue.submit([this.encoded()]);
    await this.staging.mapAsync(GPUMapMode.READ);
    const bytes = this.staging.getMappedRange().slice(0);
    this.staging.unmap();
    if (checks) this.checkIndices(bytes);
    return this.outputs.map((about, i) => gathered(about, this.reads[i], bytes));
  }

  encoded() {
    const encoder = this.device.createCommandEncoder();
    let pass = null;
    for (const c of this.commands) {
      if (c.copy) {
        pass?.end();
        pass = null;
        const [from, to] = c.copy.map((b) => this.buffers[b]);
        encoder.copyBufferToBuffer(from, 0, to, c.at, c.bytes);
      } else {
        pass ??= encoder.beginComputePass();
        pass.setPipeline(c.pipeline);
        pass.setBindGroup(0, c.group);
        pass.dispatchWorkgroups(...c.groups);
      }
    }
    pass?.end();
    for (const r of this.reads) {
      if (r) encoder.copyBufferToBuffer(r.buffer, r.start, this.staging, r.at, r.size);
    }
    return encoder.finish();
  }

  checkIndices(bytes) {
    const [count, number, low, high] = new Uint32Array(bytes, this.reads.at(-1).at, 4);
    if (!count) return;
    const value = BigInt.asIntN(64, (BigInt(high) << 32n) | BigInt(low));
    const check = this.plan.checks.messages[number];
    if (check && check.size === undefined) throw new Error(check.what);
    throw new RangeError(
      check
        ? `${check.what} ${value} is out of range for an axis of size ${check.size}`
        : `the index ${value} is out of range`
    );
  }

  /** What WebGPU finds wrong while `work` goes on, as an Error. */
  async checked(what, work) {
    const kinds = ["validation", "out-of-memory", "internal"];
    kinds.forEach((kind) => this.device.pushErrorScope(kind));
    let result;
    let failure = null;
    try {
      result = await work();
    } catch (error) {
      failure = error;
    }
    const found = await Promise.all(kinds.map(() => this.device.popErrorScope()));
    if (failure) throw failure;
    const wrong = found.filter((error) => error).map((error) => error.message);
    if (wrong.length) throw new Error(`WebGPU, while ${what} ${this.name}: ${wrong.join("; ")}`);
    return result;
  }
}

/** The elements of one output in C order, from where they lie. */
function gathered({shape, strides, offset, dtype}, read, bytes) {
  const kind = ARRAYS[dtype];
  const out = new kind(sizeOf(shape));
  if (!read) return out;
  const width = kind.BYTES_PER_ELEMENT;
  const source = new kind(bytes, read.at, read.size / width);
  const index = new Array(shape.length).fill(0);
  let at = offset - read.start / width;
  for (let i = 0; i < out.length; i++) {
    out[i] = source[at];
    for (let k = shape.length - 1; k >= 0; k--) {
      at += strides[k];
      if (++index[k] < shape[k]) break;
      at -= strides[k] * shape[k];
      index[k] = 0;
    }
  }
  return out;
}
