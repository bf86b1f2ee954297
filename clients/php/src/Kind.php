<?php

declare(strict_types=1);

namespace Tickr;

/**
 * Makes a class the payload of a kind. Its public properties are the fields of the payload.
 *
 * The constructor of the class takes the fields by name, so that a worker can build it again.
 */
#[\Attribute(\Attribute::TARGET_CLASS)]
final class Kind
{
    /**
     * @param string               $name    the name of the kind
     * @param array<string, mixed> $options options of every job of the class, by their names in the API
     */
    public function __construct(public readonly string $name, public readonly array $options = [])
    {
    }

    /**
     * The kind of a payload class, or null when it has no attribute.
     *
     * @param object|class-string $payload
     */
    public static function of(object|string $payload): ?self
    {
        if (\is_string($payload) && !class_exists($payload)) {
            return null;
        }
        $attributes = (new \ReflectionClass($payload))->getAttributes(self::class);
        return $attributes === [] ? null : $attributes[0]->newInstance();
    }

    /**
     * Build the payload class from the fields of a payload.
     *
     * @param class-string $class
     *
     * @throws Rejected when the payload does not fit the constructor: no attempt could do better
     */
    public static function build(string $class, mixed $payload): object
    {
        try {
            return new $class(...(\is_array($payload) ? $payload : [$payload]));
        } catch (\Error $error) {
            throw new Rejected("the payload does not fit $class: " . $error->getMessage());
        }
    }
}
