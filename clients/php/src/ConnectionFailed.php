<?php

declare(strict_types=1);

namespace Tickr;

/** No server answered: the connection failed, or the answer did not come in time. */
final class ConnectionFailed extends \RuntimeException implements TickrException
{
}
