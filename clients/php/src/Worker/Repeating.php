<?php

declare(strict_types=1);

namespace Tickr\Worker;

use Tickr\ConnectionFailed;
use Tickr\Http\Addresses;
use Tickr\Http\Channel;
use Tickr\Http\Request;
use Tickr\Http\Response;
use Tickr\Http\Turns;
use Tickr\Json;
use Tickr\Problem;

/**
 * A call that is repeated until a server answers it. A body that is a text stays the same.
 *
 * @internal
 */
final class Repeating
{
    private const LONGEST_PAUSE = 5.0;

    private readonly Turns $turns;
    private ?Request $request = null;
    /** The request that was answered last. */
    private ?Request $answered = null;
    private float $started = 0.0;
    private float $next = 0.0;
    private int $failures = 0;

    /**
     * @param string                $what    the call, for the log
     * @param string                $member  a member of every success; a success without it comes from a proxy
     * @param \Closure(int): bool   $isFinal says of a status, other than a success, that a repetition cannot change it
     * @param bool                  $obeys   whether a pause is as long as a server asks
     * @param \Closure(string): void $log
     */
    public function __construct(
        private readonly string $what,
        private readonly string $member,
        private readonly \Closure $isFinal,
        private readonly bool $obeys,
        private readonly Channel $channel,
        private readonly Addresses $addresses,
        private readonly \Closure $log,
    ) {
        $this->turns = new Turns($addresses, self::LONGEST_PAUSE * 0.8);
    }

    public function isIdle(): bool
    {
        return $this->request === null;
    }

    public function start(Request $request): void
    {
        $this->request = $request;
        $this->started = Channel::now();
        $this->next = 0.0;
        $this->turns->reset();
        $this->failures = 0;
    }

    public function abort(): void
    {
        if ($this->request !== null) {
            $this->channel->close();
            $this->request = null;
        }
    }

    /**
     * Go on, without waiting.
     *
     * @return Response|null the final answer, with which the call is over: 2xx, or one that a repetition cannot change
     */
    public function step(): ?Response
    {
        if ($this->request === null) {
            return null;
        }
        try {
            if (!$this->channel->isBusy()) {
                if (Channel::now() < $this->next) {
                    return null;
                }
                $this->channel->begin($this->request, $this->turns->place());
            }
            $response = $this->channel->advance();
        } catch (ConnectionFailed $failed) {
            $this->again($failed->getMessage(), null);
            return null;
        }
        if ($response === null) {
            return null;
        }
        if ($response->isSuccess() ? $this->isReadable($response) : ($this->isFinal)($response->status)) {
            $this->answered = $this->request;
            $this->request = null;
            return $response;
        }
        $this->addresses->failed($this->channel->place());
        $why = Problem::of($response)->code;
        $this->again("$response->status $why", $this->obeys ? $response->retryAfter() : null);
        return null;
    }

    /** The moment at which the request was sent that was answered last, on the clock of the channel. */
    public function sentAt(): float
    {
        return $this->channel->sentAt();
    }

    /** The moment at which the call began, before its first request was sent, on the clock of the channel. */
    public function startedAt(): float
    {
        return $this->started;
    }

    /** True when the answer may be one to an earlier request of the call. */
    public function wasRepeated(): bool
    {
        return $this->failures > 0 || $this->channel->sends() > 1;
    }

    /** The seconds since the request was sent that was answered last. */
    public function waited(): float
    {
        return Channel::now() - $this->sentAt();
    }

    /** Send the request that was answered last again, because its answer makes no sense. */
    public function repeat(string $why): void
    {
        $this->request = $this->answered;
        $this->addresses->failed($this->channel->place());
        $this->again($why, null);
    }

    private function isReadable(Response $response): bool
    {
        try {
            return isset(Json::members($response->body)[$this->member]);
        } catch (\InvalidArgumentException) {
            return false;
        }
    }

    /**
     * @param list<resource> $read
     * @param list<resource> $write
     */
    public function streams(array &$read, array &$write): void
    {
        if ($this->channel->reading() !== null) {
            $read[] = $this->channel->reading();
        }
        if ($this->channel->writing() !== null) {
            $write[] = $this->channel->writing();
        }
    }

    /** The moment at which `step` has something to do without a stream. */
    public function due(): float
    {
        if ($this->request === null) {
            return INF;
        }
        return $this->channel->isBusy() ? $this->channel->due() : $this->next;
    }

    private function again(string $why, ?float $after): void
    {
        $this->failures++;
        if ($this->failures === 1 || $this->failures % 20 === 0) {
            ($this->log)("$this->what failed and is repeated: $why");
        }
        $this->next = Channel::now() + $this->turns->next($this->channel->place(), $after ?? 0.0);
    }
}
