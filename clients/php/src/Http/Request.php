<?php

declare(strict_types=1);

namespace Tickr\Http;

/** A request, without the token: the connection adds it. */
final class Request
{
    /**
     * @param string               $path    path below the address, with its query
     * @param string|\Closure|null $body    JSON text, or a function that makes it anew each time it is sent
     * @param array<string, string|\Closure(): string> $headers a function keeps a token out of dumps
     * @param float                $timeout seconds until the whole answer must be there
     */
    public function __construct(
        public readonly string $method,
        public readonly string $path,
        public readonly string|\Closure|null $body = null,
        public readonly array $headers = [],
        public readonly float $timeout = 30.0,
    ) {
    }

    /** The text to send now. */
    public function text(): ?string
    {
        return $this->body instanceof \Closure ? ($this->body)() : $this->body;
    }
}
