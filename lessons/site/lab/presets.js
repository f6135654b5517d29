// Settings worth a look, each with the sentence that says why.

export const PRESETS = [
  {
    name: "Overlap wins",
    why: "The host has 6.7 ms of work to hide behind a device step of 9.2 ms.",
    settings: {},
  },
  {
    name: "It ties",
    why: "The device is the bottleneck, and the host has next to nothing that could be hidden.",
    settings: { host: 1, forward: 20 },
  },
  {
    name: "It loses",
    why: "So few tokens that the step which overlap launches past the end costs more than it saved.",
    settings: { host: 2, forward: 16, tokens: 2 },
  },
  {
    name: "The host is too slow",
    why: "Overlap hides the device behind the host: the faster of the two is never the bottleneck.",
    settings: { host: 20, forward: 4 },
  },
  {
    name: "A grammar makes it wait",
    why: "The mask needs the token before. vLLM defers the output; MLX does not chain, and idles.",
    settings: { loops: ["vllm_async", "mlx_async"], needs: "grammar" },
  },
];
