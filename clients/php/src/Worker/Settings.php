<?php

declare(strict_types=1);

namespace Tickr\Worker;

/** Settings of a worker. Times are milliseconds. */
final class Settings
{
    /**
     * @param string            $name      name of the program, for operators
     * @param list<string>|null $queues    queues to serve; null for `default` and the queues of the kinds
     * @param int               $slots     handlers at the same time, each in a process of its own
     * @param int               $leaseMs   time without a beat after which the jobs are taken away, at least 10,000
     * @param int               $graceMs   time after SIGTERM in which running jobs may finish
     * @param int               $killMs    time after a cancel or a deadline in which a handler may stop by itself;
     *                                     then its process is killed
     * @param int               $waitMs    longest wait of one request for jobs, at most 60,000
     * @param int               $maxJobs   jobs after which a process is replaced by a fresh one; 0 for no limit
     * @param string            $version   version of the program, for operators
     *
     * @throws \InvalidArgumentException when a number is out of its bounds
     */
    public function __construct(
        public readonly string $name = 'php',
        public readonly ?array $queues = null,
        public readonly int $slots = 4,
        public readonly int $leaseMs = 60_000,
        public readonly int $graceMs = 30_000,
        public readonly int $killMs = 5_000,
        public readonly int $waitMs = 30_000,
        public readonly int $maxJobs = 0,
        public readonly string $version = '',
    ) {
        $bounds = [
            'slots' => [$slots, 1, 1000],
            'leaseMs' => [$leaseMs, 10_000, 3_600_000],
            'graceMs' => [$graceMs, 0, PHP_INT_MAX],
            'killMs' => [$killMs, 0, PHP_INT_MAX],
            'waitMs' => [$waitMs, 0, 60_000],
            'maxJobs' => [$maxJobs, 0, PHP_INT_MAX],
        ];
        foreach ($bounds as $setting => [$value, $least, $most]) {
            if ($value < $least || $value > $most) {
                throw new \InvalidArgumentException("$setting of a worker is $least to $most, not $value");
            }
        }
    }
}
