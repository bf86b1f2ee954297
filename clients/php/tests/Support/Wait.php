<?php

declare(strict_types=1);

namespace Tickr\Tests\Support;

final class Wait
{
    /**
     * Ask again until the answer is neither null nor false, at most so many seconds.
     *
     * @param \Closure(): mixed $ask
     */
    public static function until(\Closure $ask, string $for, float $seconds = 10.0): mixed
    {
        $end = hrtime(true) + $seconds * 1e9;
        do {
            $answer = $ask();
            if ($answer !== null && $answer !== false) {
                return $answer;
            }
            usleep(20_000);
        } while (hrtime(true) < $end);
        throw new \RuntimeException("waited $seconds s in vain for $for");
    }
}
