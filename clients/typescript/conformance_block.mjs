// Blocks its thread without any cooperation.
export default ({ ms }) => {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  return null;
};
