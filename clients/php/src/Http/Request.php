<?php

declare(strict_types=1);

namespace Tickr\Http;

/** A request, without the token: the connection adds it. */
final class Request
{
    /**
     * @param string                $path    path below the address, with its query
     * @param string|null           $body    JSON text
     * @param array<string, string> $headers
     * @param float                 $timeout seconds until the whole answer must be there
     */
    public function __construct(
        public readonly string $method,
        public readonly string $path,
        public readonly ?string $body = null,
        public readonly array $headers = [],
        public readonly float $timeout = 30.0,
    ) {
    }
}
