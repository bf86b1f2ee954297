<?php

return ['paths' => [], 'compiled' => getenv('SHOP_DIR')];
