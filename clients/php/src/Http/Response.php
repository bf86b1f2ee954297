<?php

declare(strict_types=1);

namespace Tickr\Http;

final class Response
{
    /** Longest wait that a server may ask for. */
    private const LONGEST_WAIT = 60.0;

    /** @param array<string, string> $headers with names in lower case */
    public function __construct(
        public readonly int $status,
        public readonly array $headers,
        public readonly string $body,
    ) {
    }

    public function isSuccess(): bool
    {
        return $this->status >= 200 && $this->status < 300;
    }

    /** True when the same request may have another answer later, so that it should be repeated. */
    public function isPassing(): bool
    {
        return \in_array($this->status, [408, 429, 500, 502, 503, 504], true);
    }

    /** Seconds that the server asks to wait, at most a minute; null when it does not ask. */
    public function retryAfter(): ?float
    {
        $text = $this->headers['retry-after'] ?? '';
        return preg_match('/^\d{1,5}$/D', $text) === 1 ? min((float) $text, self::LONGEST_WAIT) : null;
    }

    /**
     * @return array<string, mixed>
     *
     * @throws \Tickr\ConnectionFailed when the body is not a JSON object, because then it is no answer of tickr
     */
    public function json(): array
    {
        $decoded = json_decode($this->body, true, 512, JSON_BIGINT_AS_STRING);
        if (!\is_array($decoded)) {
            throw new \Tickr\ConnectionFailed('the answer is not the JSON of tickr');
        }
        return $decoded;
    }
}
