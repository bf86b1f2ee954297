<?php

declare(strict_types=1);

namespace Tickr\Testing;

use Tickr\Enqueued;
use Tickr\Enqueuer;
use Tickr\NewJob;
use Tickr\Uuid;

/** Records what a program enqueues, without a server. Give it to code that takes an {@see Enqueuer}. */
final class FakeClient implements Enqueuer
{
    /** @var list<NewJob> */
    private array $jobs = [];

    public function enqueue(
        string|object $kind,
        mixed $payload = [],
        array $options = [],
        ?string $idempotencyKey = null,
    ): Enqueued {
        $job = $kind instanceof NewJob ? $kind : new NewJob($kind, $payload, $options);
        $job->toJson();
        $this->jobs[] = $job;
        return new Enqueued(Uuid::v7());
    }

    public function enqueueMany(iterable $jobs, ?string $idempotencyKey = null): array
    {
        $enqueued = [];
        foreach ($jobs as $job) {
            $enqueued[] = $this->enqueue($job);
        }
        return $enqueued;
    }

    /**
     * @param string|null $kind name of a kind, or a class with the attribute {@see \Tickr\Kind}; null for all
     *
     * @return list<NewJob> the jobs that were enqueued, in their order
     */
    public function enqueued(?string $kind = null): array
    {
        $name = $kind === null ? null : (\Tickr\Kind::of($kind)?->name ?? $kind);
        $matches = static fn (NewJob $job): bool => $name === null || $job->kind === $name;
        return array_values(array_filter($this->jobs, $matches));
    }

    /**
     * Assert that a job of this kind was enqueued.
     *
     * @param callable(NewJob): bool|null $matches says whether it is the right one
     *
     * @throws \LogicException when there is none; a test runner reports it as an error
     */
    public function assertEnqueued(string $kind, ?callable $matches = null): NewJob
    {
        foreach ($this->enqueued($kind) as $job) {
            if ($matches === null || $matches($job)) {
                // PHPUnit calls a test without assertions risky.
                if (class_exists(\PHPUnit\Framework\Assert::class, false)) {
                    \PHPUnit\Framework\Assert::assertTrue(true);
                }
                return $job;
            }
        }
        $others = implode(', ', array_map(static fn (NewJob $job) => $job->kind, $this->jobs)) ?: 'nothing';
        throw new \LogicException("no such job of the kind \"$kind\" was enqueued; enqueued were: $others");
    }

    /** @throws \LogicException when a job was enqueued */
    public function assertNothingEnqueued(): void
    {
        if ($this->jobs !== []) {
            throw new \LogicException('jobs were enqueued: ' . implode(', ', array_map(
                static fn (NewJob $job) => $job->kind,
                $this->jobs,
            )));
        }
    }
}
