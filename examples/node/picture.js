// Draws a picture of 512 × 512 points and makes it smaller. Runs in a thread.

import { writeFile } from 'node:fs/promises';

const SIZE = 512;

export default async function resize({ width }, context) {
  const large = new Uint8Array(SIZE * SIZE);
  for (let place = 0; place < large.length; place += 1) large[place] = (place ^ (place >> 9)) & 0xff;
  const small = new Uint8Array(width * width);
  for (let y = 0; y < width; y += 1) {
    context.throwIfStopped();
    for (let x = 0; x < width; x += 1) {
      const [top, left] = [Math.floor((y * SIZE) / width), Math.floor((x * SIZE) / width)];
      small[y * width + x] = large[top * SIZE + left];
    }
  }
  const file = `${context.job.id}.pgm`;
  await writeFile(new URL(`./out/${file}`, import.meta.url), [`P5 ${width} ${width} 255\n`, small]);
  context.log('a picture of %d points', small.length);
  return { file, bytes: small.length };
}
