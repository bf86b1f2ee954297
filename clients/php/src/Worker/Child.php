<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\Attempt;
use Tickr\Cancelled;
use Tickr\Context;
use Tickr\Ending;
use Tickr\Json;
use Tickr\RawJson;

/**
 * The process of one slot: it takes an attempt from the engine, executes the handler, and says how it ended.
 *
 * @internal
 */
final class Child
{
    private bool $busy = false;
    /** The id of this process. A helper that a handler forks has a copy of this object, and another id. */
    private int $self = 0;

    /**
     * @param \Closure(Context): mixed $handler
     * @param \Closure(): bool         $leaves  says after a job whether a fresh process must take the place of this one
     * @param \Closure(): bool         $stops   says after a job whether the whole worker must stop
     */
    public function __construct(
        private readonly Frames $frames,
        private readonly \Closure $handler,
        private readonly \Closure $leaves,
        private readonly \Closure $stops,
        private readonly int $maxJobs,
        private readonly int $parent,
    ) {
    }

    /** Execute attempts until the engine sends the process away or is gone. */
    public function run(): void
    {
        $this->self = (int) getmypid();
        register_shutdown_function(function (): void {
            if (getmypid() !== $this->self) {
                return;
            }
            if ($this->busy) {
                $error = error_get_last();
                $fatal = E_ERROR | E_CORE_ERROR | E_COMPILE_ERROR | E_PARSE | E_USER_ERROR | E_RECOVERABLE_ERROR;
                $text = $error === null || ($error['type'] & $fatal) === 0
                    ? 'the handler ended its process with exit()'
                    : "PHP stopped: {$error['message']} in {$error['file']}:{$error['line']}";
                $this->frames->send(['type' => 'end', 'verdict' => 'failed', 'error' => $text]);
                $this->frames->flushAll();
            }
            self::vanish();
        });
        for ($jobs = 0; $this->maxJobs === 0 || $jobs < $this->maxJobs; $jobs++) {
            $this->frames->send(['type' => 'want']);
            $job = $this->next();
            if ($job === null) {
                break;
            }
            $this->execute($job);
            if (($this->stops)()) {
                $this->frames->send(['type' => 'stop']);
            }
            if (($this->leaves)()) {
                break;
            }
        }
        $this->frames->send(['type' => 'leaving']);
        $this->frames->flushAll();
        self::vanish();
    }

    /**
     * End this process without destructors: they would end the connections that it shares with its parent.
     */
    public static function vanish(): never
    {
        posix_kill((int) getmypid(), SIGKILL);
        exit(1);
    }

    /**
     * Read an attempt from a message of the engine.
     *
     * @param array<string, string> $job
     */
    public static function attempt(array $job): Attempt
    {
        $read = static fn (string $name): mixed => isset($job[$name]) ? json_decode($job[$name], true) : null;
        return new Attempt(
            (string) $read('id'),
            (string) $read('kind'),
            (string) $read('queue'),
            new RawJson($job['payload'] ?? 'null'),
            (int) ($read('attempt') ?? 1),
            (int) ($read('max_attempts') ?? 1),
            (int) ($read('timeout_ms') ?? 300_000),
            isset($job['checkpoint']) && $job['checkpoint'] !== 'null' ? new RawJson($job['checkpoint']) : null,
            $read('traceparent'),
            $read('tags') ?? [],
        );
    }

    /** @return array<string, string>|null */
    private function next(): ?array
    {
        while (true) {
            foreach ($this->frames->receive() as $message) {
                if ($message['type'] === 'job') {
                    return $message;
                }
                if ($message['type'] === 'exit') {
                    return null;
                }
            }
            // Other children may keep the other end of the socket open after the parent has died.
            if ($this->frames->hasEnded() || posix_getppid() !== $this->parent) {
                return null;
            }
            $this->frames->wait(1.0);
        }
    }

    /** @param array<string, string> $job */
    private function execute(array $job): void
    {
        $this->busy = true;
        try {
            $context = new ChildContext(self::attempt($job), $this->frames, $this->parent);
            $end = self::outcome($this->handler, $context);
        } catch (\Throwable $error) {
            $end = ['verdict' => 'failed', 'error' => $error::class . ': ' . $error->getMessage()];
        }
        if (getmypid() !== $this->self) {
            // Only the process of the slot says how the attempt ended. A helper that came out of the handler has ended.
            isset($end['error']) && error_log($end['error']);
            $code = $end['verdict'] === 'succeeded' ? 0 : 255;
            // The end of PHP would close the TLS connections that this process shares with the worker.
            pcntl_exec('/bin/sh', ['-c', "exit $code"]);
            exit($code);
        }
        $this->busy = false;
        $this->frames->send(['type' => 'end'] + $end);
        $this->frames->flushAll();
    }

    /**
     * Execute a handler and say how it ended.
     *
     * @param \Closure(Context): mixed $handler
     *
     * @return array{
     *     verdict: string, error?: string, delay_ms?: ?int, result?: string, cancelled?: bool,
     *     follow_ups?: list<string>
     * }
     */
    public static function outcome(\Closure $handler, Context $context): array
    {
        try {
            $result = $handler($context);
            if ($result instanceof Ending) {
                throw $result;
            }
            $jobs = $context->followUps();
            $success = ['verdict' => 'succeeded'] + ($jobs === [] ? [] : ['follow_ups' => $jobs]);
            if ($result === null) {
                return $success;
            }
            try {
                $text = Json::encode($result);
            } catch (\InvalidArgumentException $error) {
                return ['verdict' => 'failed', 'error' => 'the result of the handler: ' . $error->getMessage()];
            }
            if (\strlen($text) > 262_144) {
                $error = 'the result of the handler has ' . \strlen($text) . ' bytes of JSON; at most 262144 are kept';
                return ['verdict' => 'failed', 'error' => $error];
            }
            return $success + ['result' => $text];
        } catch (Cancelled $cancelled) {
            return ['verdict' => 'failed', 'error' => $cancelled->getMessage(), 'cancelled' => true];
        } catch (Ending $ending) {
            return [
                'verdict' => $ending->verdict(), 'error' => $ending->getMessage(), 'delay_ms' => $ending->delayMs(),
            ];
        } catch (\Throwable $error) {
            return ['verdict' => 'failed', 'error' => $error::class . ': ' . $error->getMessage()];
        }
    }
}
