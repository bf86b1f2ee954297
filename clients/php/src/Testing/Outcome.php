<?php

declare(strict_types=1);

namespace Tickr\Testing;

use Tickr\Context;
use Tickr\Json;
use Tickr\Worker\Child;

/** How a handler ended its attempt. */
final class Outcome
{
    private function __construct(
        /** `succeeded`, `failed`, `rejected`, `snoozed` or `released` */
        public readonly string $verdict,
        public readonly mixed $result,
        public readonly ?string $error,
        public readonly ?int $delayMs,
        /** @var list<array<string, mixed>> the jobs of `then`, if it succeeded: `kind`, `payload` and the options */
        public readonly array $followUps,
    ) {
    }

    /**
     * Run a handler alone, as a worker would.
     *
     * @param callable(mixed, Context): mixed $handler
     */
    public static function of(callable $handler, Context $context = new FakeContext()): self
    {
        $handler = $handler(...);
        $end = Child::outcome(static fn (Context $context) => $handler($context->attempt->payload, $context), $context);
        $result = isset($end['result']) ? Json::decode($end['result']) : null;
        $followUps = array_map(Json::decode(...), $end['follow_ups'] ?? []);
        return new self($end['verdict'], $result, $end['error'] ?? null, $end['delay_ms'] ?? null, $followUps);
    }
}
