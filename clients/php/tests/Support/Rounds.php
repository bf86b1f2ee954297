<?php

declare(strict_types=1);

namespace Tickr\Tests\Support {
    /** Counts the rounds of the loop of an agent. One that waits for nothing has thousands of them in a second. */
    final class Rounds
    {
        private static ?string $file = null;

        /** Count the rounds of agents that start from now on, by the length of this file. */
        public static function countTo(?string $file): void
        {
            self::$file = $file;
        }

        public static function of(string $file): int
        {
            clearstatcache();
            return (int) filesize($file);
        }

        public static function note(): void
        {
            if (self::$file !== null) {
                file_put_contents(self::$file, '.', FILE_APPEND);
            }
        }
    }
}

namespace Tickr\Worker {
    use Tickr\Tests\Support\Rounds;

    /** PHP takes this function for its own one in this namespace. Each round of an agent calls it once. */
    function posix_getppid(): int
    {
        Rounds::note();
        return \posix_getppid();
    }
}
