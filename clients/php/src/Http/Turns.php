<?php

declare(strict_types=1);

namespace Tickr\Http;

/**
 * The addresses of a call that is repeated, and the pauses between its tries.
 *
 * The pauses grow. With several addresses a pause follows when all of them have failed, and the next one is tried at
 * once before. An address that named a time with `Retry-After` gets no try before that time, also when another one has
 * failed since. If another one named none, the pause is over at that time.
 *
 * @internal
 */
final class Turns
{
    private const FIRST_PAUSE = 0.1;

    /** @var array<int, float> by place, when the address may be tried again, on the clock of the channel */
    private array $notBefore = [];
    /** @var array<int, true> the places that have failed since the last pause */
    private array $failed = [];
    private float $pause = self::FIRST_PAUSE;

    /** @param float $longest seconds of the longest pause that no server asks for */
    public function __construct(private readonly Addresses $addresses, private readonly float $longest)
    {
    }

    /** Begin with short pauses again. */
    public function reset(): void
    {
        $this->failed = [];
        $this->pause = self::FIRST_PAUSE;
    }

    /** The place of the address for the next try. */
    public function place(): int
    {
        $now = Channel::now();
        $count = $this->addresses->count();
        $current = $this->addresses->current();
        $order = array_map(static fn (int $step): int => ($current + $step) % $count, range(0, $count - 1));
        $free = array_filter($order, fn (int $place): bool => ($this->notBefore[$place] ?? 0.0) <= $now) ?: $order;
        $fresh = array_filter($free, fn (int $place): bool => !isset($this->failed[$place])) ?: $free;
        return reset($fresh);
    }

    /**
     * The seconds until the next try, after one that failed.
     *
     * @param float $after the seconds that its address asked to wait
     */
    public function next(int $place, float $after = 0.0): float
    {
        $now = Channel::now();
        $this->failed[$place] = true;
        $this->notBefore[$place] = $now + $after;
        $named = [];
        for ($other = 0; $other < $this->addresses->count(); $other++) {
            $notBefore = $this->notBefore[$other] ?? 0.0;
            if (!isset($this->failed[$other]) && $notBefore <= $now) {
                return 0.0;
            }
            if ($notBefore > $now) {
                $named[] = $notBefore - $now;
            }
        }
        $this->failed = [];
        // A proxy may ask for no pause at all.
        $grown = $this->pause * random_int(75, 125) / 100;
        $this->pause = min($this->pause * 2, $this->longest);
        return count($named) === $this->addresses->count() ? max($grown, min($named)) : min([$grown, ...$named]);
    }
}
