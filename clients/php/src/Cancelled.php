<?php

declare(strict_types=1);

namespace Tickr;

/** The handler must stop. {@see Context::check} and {@see Context::sleep} throw it; let it through. */
final class Cancelled extends \RuntimeException implements TickrException
{
    public const CANCELLED = 'cancelled';
    public const DEADLINE = 'deadline';
    public const LOST = 'lost';
    public const STOPPING = 'stopping';

    /** @param string $reason one of the constants of this class */
    public function __construct(public readonly string $reason)
    {
        parent::__construct(match ($reason) {
            self::DEADLINE => 'the time of the attempt is over',
            self::LOST => 'the worker does not hold the attempt any more',
            self::STOPPING => 'the worker stops',
            default => 'the job was cancelled',
        });
    }
}
