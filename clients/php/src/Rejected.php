<?php

declare(strict_types=1);

namespace Tickr;

/** No attempt of the job can succeed: it fails for good. */
final class Rejected extends Ending
{
    public function __construct(string $message)
    {
        parent::__construct($message);
    }

    public function verdict(): string
    {
        return 'rejected';
    }
}
